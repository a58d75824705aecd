"""Reinforcement-learning cores: latents to losses for acting and valuing."""
