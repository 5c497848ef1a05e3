"""Every metric that is exported: the table of all series, their labels, and the samples that processes exchange."""

from later.metrics.samples import Exposition, MetricSample, MetricSamples, sum_samples
from later.metrics.table import TOPIC_COUNTERS, Metrics
from later.metrics.topic_labels import MAX_TOPICS, OTHER, TopicLabels

__all__ = [
    "MAX_TOPICS",
    "OTHER",
    "TOPIC_COUNTERS",
    "Exposition",
    "MetricSample",
    "MetricSamples",
    "Metrics",
    "TopicLabels",
    "sum_samples",
]
