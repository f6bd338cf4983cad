"""A thin kit for the TpuGraphs data set: read, prune, train, rank, submit."""
