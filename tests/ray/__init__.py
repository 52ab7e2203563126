"""Tests that share one Ray: looks at a few small studies, and worker groups."""
