//! A known load in the receive path: an XDP program that spends a given time on
//! each frame and counts what it spent, by the clock, in softirq or thread context,
//! wherever the frame is received. A CPU meter must book at least that.
//!
//! Limits: time that an interrupt takes of it, or a hypervisor, counts as spent.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use plimsoll_kernel::error::bpf;
use plimsoll_kernel::xdp_link::XdpLink;

use crate::{Error, Host};

include!(concat!(env!("OUT_DIR"), "/burn.rs")); // mod skeleton

/// The program in place. Dropping it detaches it.
pub struct Burner {
    skeleton: skeleton::BurnSkel<'static>,
    _link: XdpLink,
}

impl fmt::Debug for Burner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Burner").finish_non_exhaustive()
    }
}

impl Burner {
    /// Attaches it to the host's end of the link. It passes every frame until
    /// [`Burner::burn`]. Place receive work after this, not before.
    ///
    /// # Errors
    ///
    /// The kernel refuses the program, or another one is attached.
    pub fn attach(host: &Host) -> Result<Self, Error> {
        // The skeleton borrows the place its object lives in. A few leaked bytes
        // are the safe way to own both; the object itself is dropped.
        let place = Box::leak(Box::new(MaybeUninit::uninit()));
        let open = skeleton::BurnSkelBuilder::default().open(place);
        let skeleton = open.and_then(OpenSkel::load);
        let skeleton = skeleton.map_err(bpf("load the burner"))?;
        let program = skeleton.progs.burner.as_fd();
        let attach = || XdpLink::attach(program, host.device(), host.ifindex());
        let link = host.run(attach)??;
        Ok(Self {
            skeleton,
            _link: link,
        })
    }

    /// Spends this time on each frame from now on, and drops it then.
    pub fn burn(&mut self, per_frame: Duration) {
        self.set(u64::try_from(per_frame.as_nanos()).unwrap_or(u64::MAX), 0);
    }

    /// Drops each frame from now on, and spends no time that a clock is needed for: the
    /// least that a program can do.
    pub fn drop_at_once(&mut self) {
        self.set(0, 1);
    }

    /// Passes each frame from now on, as after the start.
    pub fn pass(&mut self) {
        self.set(0, 0);
    }

    fn set(&mut self, burn_ns: u64, drops: u64) {
        let variables = self.skeleton.maps.bss_data.as_deref_mut();
        if let Some(variables) = variables {
            variables.burn_ns = burn_ns;
            variables.drops = drops;
        }
    }

    /// Time spent so far.
    #[must_use]
    pub fn burned(&self) -> Duration {
        let variables = self.skeleton.maps.bss_data.as_deref();
        // The program adds to it meanwhile: read it from memory each time.
        let variables = std::hint::black_box(variables);
        Duration::from_nanos(variables.map_or(0, |variables| variables.burned_ns))
    }
}
