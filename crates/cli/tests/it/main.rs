//! This crate's integration tests in one program, since each would take its time to link. `make test`
//! runs each module in a process of its own.

mod benching;
mod capturing;
mod common;
mod screening;
mod serving;
mod shell;

mod bench;
mod bench_passing;
mod bench_stack;
mod blast;
mod capture;
mod capture_ends;
mod capture_rings;
mod command_lines;
mod commit;
mod first_contact;
mod forward;
mod guard;
mod guard_config;
mod guard_goes_on;
mod guard_governor;
mod guard_lazy;
mod guard_neighbour;
mod guard_reload;
mod guard_signals;
mod guard_standby;
mod guard_status;
mod guard_top;
mod guide;
mod lab;
mod lab_calibrate;
mod lab_testbed;
mod libxdp;
mod package;
mod promlint;
mod screen;
mod screen_ends;
mod screen_killed;
mod screen_overload;
mod serve_flooded;
mod serve_interface;
mod serve_kernel;
mod serve_stack;
mod triggers;
