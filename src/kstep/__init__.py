"""Data-efficient reinforcement learning from pixels: k-Step Latent (KSL) and its peers."""

__version__ = "0.1.0"
