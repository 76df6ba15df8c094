//! Honest overload on one machine.
