//! A program that passes every frame.
//!
//! veth hands on what a program sends back by `XDP_TX` only if the other end runs
//! a program too or has GRO on; an adapter has no such rule. And veth has NAPI instances only
//! with a program or GRO.
//!
//! Limits: with it, veth copies what ordinary sockets send to that end, and the
//! sender's CPU polls it: use it for all sides of a comparison, or for none.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{OpenObject, ProgramInput};

use crate::error::{AttachError, CallError, bpf};
use crate::link;
use crate::xdp_link::XdpLink;

include!(concat!(env!("OUT_DIR"), "/pass_all.rs")); // mod skeleton

use skeleton::PassAllSkel;

/// The program in place. Dropping it detaches it.
pub struct PassAll {
    _link: XdpLink,
}

impl fmt::Debug for PassAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassAll").finish_non_exhaustive()
    }
}

impl PassAll {
    /// Attaches it to an interface of the current network namespace.
    ///
    /// # Errors
    ///
    /// No such interface; the kernel refuses the program, or another one is
    /// attached.
    pub fn attach(interface: &str) -> Result<Self, AttachError> {
        let ifindex = link::index(interface)?;
        let mut place = MaybeUninit::uninit();
        let program = load(&mut place)?;
        let link = XdpLink::attach(program.progs.pass_all.as_fd(), interface, ifindex)?;
        Ok(Self { _link: link })
    }

    /// Refuses an interface that [`PassAll::attach`] refuses for another program there, or for a
    /// driver without native XDP. Drivers outside of the kernel's source may take one all the
    /// same: such a driver is tried, which may have it set up its rings anew. No other is.
    ///
    /// # Errors
    ///
    /// As [`PassAll::attach`].
    pub fn require(interface: &str, ifindex: u32) -> Result<(), AttachError> {
        match XdpLink::require_free(interface, ifindex) {
            Err(AttachError::NoNativeXdp { .. }) => Self::attach(interface).map(drop),
            // A veth's other end may have fewer queues by then.
            Err(AttachError::FewerQueues { .. }) => Ok(()),
            told => told,
        }
    }
}

pub(crate) fn load(place: &mut MaybeUninit<OpenObject>) -> Result<PassAllSkel<'_>, CallError> {
    let open = skeleton::PassAllSkelBuilder::default().open(place);
    let program = open.and_then(OpenSkel::load);
    program.map_err(bpf("load the program that passes everything"))
}

/// The mean time of a run of this program on one frame by the kernel's test-run
/// facility: what the facility itself takes, beside which another program's time
/// is to be read.
///
/// # Errors
///
/// The kernel refuses the program or the frame.
pub fn test_run(frame: &[u8], repeat: u32) -> Result<Duration, CallError> {
    let mut place = MaybeUninit::uninit();
    let program = load(&mut place)?;
    let input = ProgramInput {
        data_in: Some(frame),
        repeat,
        ..ProgramInput::default()
    };
    let output = program.progs.pass_all.test_run(input);
    Ok(output.map_err(bpf("test-run the program"))?.duration)
}
