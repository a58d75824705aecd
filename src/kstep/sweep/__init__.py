"""Many runs as one thing: what to run (plan), how (engines), what came out (store)."""
