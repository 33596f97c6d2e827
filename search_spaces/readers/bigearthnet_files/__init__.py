"""Files of BigEarthNet: archives as they are published, and the store for fast reading that is made from them."""
