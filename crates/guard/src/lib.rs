//! The kernel data path: early demultiplexing and early discard in XDP.
