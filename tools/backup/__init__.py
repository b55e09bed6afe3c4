"""Backups at URLs and of running brokers, and the reports of `qstore-backup` and `qstore-restore`."""
