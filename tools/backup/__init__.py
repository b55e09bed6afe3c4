"""Backups at URLs, and the reports of `qstore-backup` and `qstore-restore`."""
