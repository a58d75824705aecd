"""KSL in agents that are not ours: any PyTorch loop, Stable-Baselines3, TorchRL."""
