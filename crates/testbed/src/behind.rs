//! A third host behind the test host, for set-ups in which the test host passes
//! packets on: translation, bridges, routers, containers.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use plimsoll_kernel::link::wait_until_sending;

use crate::{Error, Host, Testbed, link};

/// The test host's interface towards the third host.
pub const INNER_DEVICE: &str = "inner0";

/// Not of the ranges that are routed to the load host.
const END: link::End = link::End {
    device: "behind0",
    ifindex: 2,
    mac: [0x02, 0, 0, 0, 0, 0x03],
    ipv4: Ipv4Addr::new(10, 77, 0, 2),
    ipv6: Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 2),
};
const LIMIT: Duration = Duration::from_secs(5);

impl Testbed {
    /// Makes a host that is joined to the test host by a veth pair of its own
    /// ([`INNER_DEVICE`] there). The pair is up and has no addresses: routed,
    /// bridged or translated is the caller's to say. It ends with the testbed.
    ///
    /// # Errors
    ///
    /// There is one already, or the kernel refuses.
    pub fn add_host_behind(&self) -> Result<Host, Error> {
        let test = self.test();
        let behind = Host::create(&test.registration, "behind", test.cpu(), END)?;
        let name = behind.name();
        let mac = "02:00:00:00:00:03";
        test.ip(&format!(
            "link add {INNER_DEVICE} type veth peer name {} address {mac} netns {name}",
            END.device
        ))?;
        test.ip(&format!("link set {INNER_DEVICE} up"))?;
        behind.ip("link set lo up")?;
        behind.ip(&format!("link set {} up", END.device))?;
        test.run(|| wait_until_sending(INNER_DEVICE))?
            .map_err(Error::io(format!("wait for the link to {name}")))?;
        Ok(behind)
    }
}

impl Host {
    /// Runs `ip` in this host with these words.
    ///
    /// # Errors
    ///
    /// It is not installed, or it refused; its answer is in the error.
    pub fn ip(&self, words: &str) -> Result<(), Error> {
        self.configure("ip", words.split_whitespace())
    }

    /// Runs a command that changes this host, such as `nft` or `tc`.
    ///
    /// # Errors
    ///
    /// As [`Host::ip`].
    pub fn configure<'a>(
        &self,
        program: &str,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Error> {
        self.command(program).args(words).output(LIMIT)?;
        Ok(())
    }
}
