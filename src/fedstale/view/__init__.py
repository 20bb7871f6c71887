"""What shows runs: pictures, the HTML report, the live page, and writers for trackers."""
