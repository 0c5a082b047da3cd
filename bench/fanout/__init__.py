"""What delivering a token costs: hundreds of streams from a scheduler whose worker computes nothing."""
