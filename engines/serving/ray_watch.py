"""What a replica counts, as Ray Serve's metrics (Prometheus): requests, seconds, and how many were joined."""

from ray.serve.metrics import Counter, Histogram

SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]


class RayWatch:
    """blockforge_requests{model, status}, blockforge_request_seconds{model}, blockforge_batch_{requests, rows}{model}."""

    def __init__(self, model: str) -> None:
        self._requests = Counter(
            "blockforge_requests", description="Inference requests.", tag_keys=("model", "status")
        )
        self._seconds = Histogram(
            "blockforge_request_seconds",
            description="From the body's arrival to the answer.",
            boundaries=SECONDS,
            tag_keys=("model",),
        )
        self._joined = Histogram(
            "blockforge_batch_requests",
            description="Requests that one run joined.",
            boundaries=SIZES,
            tag_keys=("model",),
        )
        self._rows = Histogram(
            "blockforge_batch_rows",
            description="Rows of one run.",
            boundaries=SIZES,
            tag_keys=("model",),
        )
        for metric in (self._requests, self._seconds, self._joined, self._rows):
            metric.set_default_tags({"model": model})  # it writes into what it gets

    def request(self, status: int, seconds: float) -> None:
        """An inference request was answered."""
        self._requests.inc(tags={"status": str(status)})
        self._seconds.observe(seconds)

    def run(self, requests: int, rows: int) -> None:
        """A run has ended."""
        self._joined.observe(requests)
        self._rows.observe(rows)
