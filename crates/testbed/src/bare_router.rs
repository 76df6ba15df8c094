//! The least program that forwards: a look-up in the kernel's table and a redirect, in
//! the driver. What a router costs beyond this is the router's own.
//!
//! Limits: it is no router. It looks at nothing that the look-up does not need, so
//! damaged headers and impossible addresses are forwarded as well.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};
use plimsoll_kernel::error::bpf;
use plimsoll_kernel::link;
use plimsoll_kernel::xdp_link::XdpLink;

use crate::{Error, Host};

include!(concat!(env!("OUT_DIR"), "/bare_router.rs")); // mod skeleton

/// The program in place. Dropping it detaches it.
pub struct BareRouter {
    _link: XdpLink,
}

impl fmt::Debug for BareRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BareRouter").finish_non_exhaustive()
    }
}

impl BareRouter {
    /// Attaches it to the host's end of the link. What comes in there and has a route
    /// and a neighbour leaves by `output`, the rest goes to the kernel.
    ///
    /// # Errors
    ///
    /// There is no such interface, the kernel refuses the program, or another one is
    /// attached.
    pub fn attach(host: &Host, output: &str) -> Result<Self, Error> {
        host.run(|| Self::attach_here(host, output))?
    }

    fn attach_here(host: &Host, output: &str) -> Result<Self, Error> {
        let output = link::index(output)?;
        let load = || bpf("load the bare router");
        let mut place = MaybeUninit::uninit();
        let open = skeleton::BareRouterSkelBuilder::default().open(&mut place);
        let skeleton = open.and_then(OpenSkel::load).map_err(load())?;
        let index = output.to_ne_bytes();
        let targets = &skeleton.maps.targets;
        let added = targets.update(&index, &index, MapFlags::ANY);
        added.map_err(load())?;
        let program = skeleton.progs.bare_router.as_fd();
        let link = XdpLink::attach(program, host.device(), host.ifindex())?;
        Ok(Self { _link: link })
    }
}
