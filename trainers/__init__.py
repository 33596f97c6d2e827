"""Data-parallel training methods behind one loop; they know nothing of campaigns."""
