"""The arms of attention: each computes one plan.attention, and says when it can."""
