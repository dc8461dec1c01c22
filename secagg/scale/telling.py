"""How far a sum is, for people and for Prometheus."""

from __future__ import annotations

from secagg.session.metrics import Metrics

from .spread import Figures


def tell(metrics: Metrics, figures: Figures) -> None:
    """Set what a scrape reads; the numbers are of the sum that runs."""
    for name, text, value in (
        ("secagg_jobs_done", "Jobs of the sum that are done.", figures.jobs_done),
        ("secagg_jobs_left", "Jobs of the sum that are not done.", figures.jobs_left),
        (
            "secagg_jobs_repeated",
            "Jobs that a second worker was given, because the first took long.",
            figures.stragglers,
        ),
        ("secagg_jobs_begun_again", "Jobs that were begun anew, because something was lost.", figures.begun_again),
        ("secagg_jobs_audited", "Jobs that were given to two workers, who had to agree.", figures.jobs_audited),
        ("secagg_workers_lost", "Workers that were lost and replaced.", figures.workers_lost),
        ("secagg_bytes_read", "Bytes that workers read and that count.", figures.bytes_read),
        ("secagg_worker_seconds", "Seconds of workers that count.", figures.seconds_of_workers),
        ("secagg_seconds_left", "Seconds that the jobs so far let expect; -1 before the first.", figures.seconds_left),
    ):
        metrics.gauge(name, text)
        metrics.set(name, -1 if value is None else value)


def sentence(figures: Figures) -> str:
    """Return a line for people."""
    left = "" if figures.seconds_left is None else f", about {figures.seconds_left:.0f} s left"
    lost = f", {figures.workers_lost} workers lost" if figures.workers_lost else ""
    return (
        f"{figures.jobs[0]} of {figures.jobs[1]} jobs, {figures.bytes_read / 1e9:.2f} GB read"
        f"{left}; {figures.stragglers} stragglers, {figures.begun_again} begun again{lost}"
    )
