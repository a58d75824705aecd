"""Everything that is stated about results: statistics, comparisons, figures, films, listings."""
