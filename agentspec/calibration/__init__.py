"""What a draft's confidence is worth: measured, recorded, and in time mended."""
