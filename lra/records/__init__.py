"""What lies in the folder of a run, and how it is read and written."""
