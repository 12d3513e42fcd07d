"""What a training run is: its settings, how they are settled, and what it leaves behind."""
