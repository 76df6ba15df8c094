//! Everything at device level (BL-21): no software interrupt, no queue between
//! driver and protocol.
//!
//! **Rules.** The handler takes each packet as far as it goes, and returns, with
//! its interrupt on again, when the adapter has none left.
//!
//! **Where excess is dropped.** On the adapter, and on the queues of those who get no
//! CPU: processes starve, since nothing limits the rate, and so do transmit completions,
//! since a handler has no quota.

use super::stages::{Behind, ReceiveHandler};
use super::{Parts, Path};
use crate::host::{Cx, Host, LineKind, Step};

/// The path.
#[derive(Debug)]
pub(super) struct HighLevel {
    handler: ReceiveHandler,
    behind: Behind,
}

impl HighLevel {
    pub(super) fn new(parts: &Parts<'_>) -> Self {
        Self {
            handler: ReceiveHandler::new(parts.costs),
            behind: Behind::new(parts.costs),
        }
    }
}

impl Path for HighLevel {
    fn start(&mut self, host: &mut Host) {
        self.handler.start(host);
        self.behind.start(host);
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        let LineKind::Receive { adapter, queue } = kind else {
            return self.behind.line(host, cx, kind);
        };
        let step = self.handler.step(
            host,
            cx,
            (adapter, queue),
            u32::MAX,
            |host, packet| (Some(packet), host.protocol_cost(&packet)),
            |host, packet| {
                host.protocol_done(packet);
            },
        );
        if step == Step::Done {
            host.enable_receive(adapter, queue);
        }
        step
    }
}
