"""What a run will need, by arithmetic: parameters, FLOPs, memory, depth reads, communication, time."""
