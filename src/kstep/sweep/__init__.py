"""Many runs: which (experiments, plan), their cost, where (engines), their results (store)."""
