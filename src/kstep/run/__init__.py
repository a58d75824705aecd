"""One run: its folder, its training, its checkpoints, what is logged and watched."""
