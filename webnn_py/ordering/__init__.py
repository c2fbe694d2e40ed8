"""What comes before what: timelines, and the order of work on one context."""
