"""KSL in agents that are not ours (any PyTorch loop, Stable-Baselines3, TorchRL), and our agents
where there is no kstep."""
