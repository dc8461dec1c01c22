"""Figures and reports of finished runs."""
