//! Comparisons of protections on the testbed.
