//! The processes of a consumer.

use plimsoll_core::soft_timer::TriggerSource;

use crate::Error;
use crate::host::{EndpointRole, Host, Step};
use crate::packet::{Kind, Packet};
use crate::path::{Path, Received};
use crate::profile::Profile;
use crate::scenario::{ComputeDemand, Role};

/// A computing process is looked at this often; it could be at any moment, since
/// others may come in between.
const COMPUTE_STEP_NS: u64 = 1_000_000;

/// Where one process is in its loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// About to ask for a packet.
    Ask,
    /// Protocol work of its receive call is over; asks again.
    Again,
    /// A system call of its work on a request ends; so many ns of it are left (web server).
    Called { left: u64 },
    /// The receive call ends.
    Took,
    /// Its own work ends.
    Worked,
    /// Its answer is handed over; so many parts of it are left.
    Answered { left: u32 },
}

/// What the processes of one consumer do.
#[derive(Debug)]
pub(crate) struct Process {
    endpoint: usize,
    role: Role,
    /// By process.
    phases: Vec<Phase>,
    /// Own work per packet, in ns.
    work: u64,
    /// What connections and requests cost (web server).
    web: WebCosts,
    /// Parts of an answer, by source.
    segments: Vec<u32>,
    /// Packets of the frame being received (media), and its number.
    frame: (u32, u32),
    /// CPU time left in the current period (periodic computing), in ns.
    busy_left: u64,
    /// Captured packets that have been read, but not looked at.
    read_left: usize,
}

/// What a web server's program spends, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WebCosts {
    accept: u64,
    request: u64,
    /// From one of its system calls to the next; 0: there is one.
    call: u64,
}

impl WebCosts {
    /// Those of one of the profile's programs, or of the machine.
    pub(crate) fn load(profile: &Profile, program: Option<&str>) -> Result<Self, Error> {
        let cost = |name| profile.program_cost(program, name, "a web server");
        Ok(Self {
            accept: cost("web_accept")?,
            request: cost("web_request")?,
            call: profile.program_cost_or_zero(program, "web_call"),
        })
    }
}

impl Process {
    pub(crate) fn new(
        endpoint: usize,
        role: Role,
        processes: usize,
        segments: Vec<u32>,
        web: WebCosts,
    ) -> Self {
        let work = match &role {
            Role::Sink { work_us } | Role::Echo { work_us } | Role::Media { work_us, .. } => {
                work_us * 1e3
            }
            Role::RpcServer { compute_us } => compute_us * 1e3,
            Role::Worker { compute_ms } => compute_ms * 1e6,
            _ => 0.0,
        };
        Self {
            endpoint,
            role,
            phases: vec![Phase::Ask; processes],
            work: work as u64,
            web,
            segments,
            frame: (0, 0),
            busy_left: 0,
            read_left: 0,
        }
    }

    /// The next step of process number `process`, which is `thread`.
    #[inline]
    pub(crate) fn step(
        &mut self,
        host: &mut Host,
        path: &mut dyn Path,
        process: usize,
        thread: usize,
    ) -> Step {
        if let Role::Compute { demand } = self.role {
            return self.compute(demand);
        }
        loop {
            match self.phases[process] {
                Phase::Ask | Phase::Again => match path.receive(host, self.endpoint, thread) {
                    Received::Packet(ns) => {
                        let kernel = self.receive_cost(host, thread, ns);
                        return self.call(process, kernel);
                    }
                    Received::Work(ns) => {
                        self.phases[process] = Phase::Again;
                        return Step::Kernel(ns);
                    }
                    Received::Nothing => {
                        self.phases[process] = Phase::Ask;
                        return Step::Done;
                    }
                },
                // The call returns to user mode, if for no time at all.
                Phase::Called { .. } | Phase::Worked if host.threads[thread].boosted => {
                    return Step::User(0);
                }
                Phase::Called { left } => {
                    let cpu = host.cpu_of(thread);
                    path.on_trigger(host, cpu, TriggerSource::SystemCall);
                    return self.call(process, left);
                }
                Phase::Took => {
                    let cpu = host.cpu_of(thread);
                    path.on_trigger(host, cpu, TriggerSource::SystemCall);
                    self.phases[process] = Phase::Worked;
                    return Step::User(self.work);
                }
                Phase::Worked => {
                    if let Some(step) = self.finish(host, path, process, thread) {
                        return step;
                    }
                }
                Phase::Answered { left } => {
                    if let Some(step) = self.answered(host, path, process, thread, left) {
                        return step;
                    }
                }
            }
        }
    }

    /// The next of the system calls that take `kernel` ns in all.
    fn call(&mut self, process: usize, kernel: u64) -> Step {
        let one = match self.web.call {
            0 => kernel,
            call => call.min(kernel),
        };
        self.phases[process] = match kernel - one {
            0 if self.work == 0 => Phase::Worked,
            0 => Phase::Took,
            left => Phase::Called { left },
        };
        Step::Kernel(one)
    }

    /// A timer of the consumer expired: a period begins.
    pub(crate) fn on_timer(&mut self, host: &mut Host) {
        if let Role::Compute {
            demand: ComputeDemand::Periodic { period_us, busy_us },
        } = self.role
        {
            let consumer = self.endpoint;
            host.set_consumer_timer(consumer, host.now + (period_us * 1e3) as u64);
            self.busy_left += (busy_us * 1e3) as u64;
            host.wake_one(consumer);
        }
    }

    fn compute(&mut self, demand: ComputeDemand) -> Step {
        match demand {
            ComputeDemand::Endless => Step::User(COMPUTE_STEP_NS),
            ComputeDemand::Periodic { .. } => {
                let step = self.busy_left.min(COMPUTE_STEP_NS);
                self.busy_left -= step;
                if step == 0 {
                    Step::Done
                } else {
                    Step::User(step)
                }
            }
        }
    }

    /// What the receive call costs, with what belongs to it for some roles.
    fn receive_cost(&mut self, host: &mut Host, thread: usize, call: u64) -> u64 {
        let costs = host.protocol;
        match self.role {
            Role::Screen { .. } => {
                let start = match host.endpoints[self.endpoint].role {
                    EndpointRole::Screen { out } => host.start_cost(out),
                    _ => 0,
                };
                costs.screen_call + costs.forward_output + start
            }
            Role::Capture { disk } => {
                let disk = if disk { costs.capture_disk } else { 0 };
                self.read(host) + costs.capture_copy + disk
            }
            Role::Web { .. } => {
                let request = host.threads[thread].hand;
                let first = request.is_some_and(|request| host.accept(self.endpoint, &request));
                self.web.request + if first { self.web.accept } else { 0 }
            }
            _ => call,
        }
    }

    /// What reading costs for the captured packet in hand: one read takes all that wait.
    fn read(&mut self, host: &Host) -> u64 {
        let begins = self.read_left == 0;
        if begins {
            self.read_left = 1 + host.endpoints[self.endpoint].queue.len();
        }
        self.read_left -= 1;
        if begins {
            host.protocol.capture_read
        } else {
            0
        }
    }

    /// The process has done its own work on the packet in hand.
    fn finish(
        &mut self,
        host: &mut Host,
        path: &mut dyn Path,
        process: usize,
        thread: usize,
    ) -> Option<Step> {
        self.phases[process] = Phase::Ask;
        let packet = host.threads[thread].hand.take()?;
        let cpu = host.cpu_of(thread);
        path.on_trigger(host, cpu, TriggerSource::SystemCall);
        if let EndpointRole::Screen { out } = host.endpoints[self.endpoint].role {
            host.send(out, packet);
            return None;
        }
        let costs = host.protocol;
        let cost = match self.role {
            Role::Echo { .. } | Role::RpcServer { .. } | Role::Worker { .. } => {
                self.phases[process] = Phase::Answered { left: 1 };
                costs.send_call + costs.transmit
            }
            Role::Web { .. } => {
                let parts = self.segments[usize::from(packet.source)].max(1);
                self.phases[process] = Phase::Answered { left: parts };
                costs.tcp_output + costs.transmit
            }
            _ => {
                self.count_frame(host, &packet);
                host.deliver(&packet);
                return None;
            }
        };
        host.threads[thread].hand = Some(packet);
        Some(Step::Kernel(cost))
    }

    /// One part of the answer has been handed over.
    fn answered(
        &mut self,
        host: &mut Host,
        path: &mut dyn Path,
        process: usize,
        thread: usize,
        left: u32,
    ) -> Option<Step> {
        self.phases[process] = Phase::Ask;
        let request = host.threads[thread].hand.take()?;
        let kind = match (self.role.is_web(), left) {
            (false, _) => Kind::Reply,
            (true, 1) => Kind::LastSegment,
            (true, _) => Kind::Segment,
        };
        let reply = Packet {
            kind,
            work: 0,
            bytes: if kind == Kind::Reply {
                request.bytes
            } else {
                1500
            },
            ..request
        };
        host.send_reply(reply);
        let cpu = host.cpu_of(thread);
        if left > 1 {
            path.on_trigger(host, cpu, TriggerSource::IpOutput);
            self.phases[process] = Phase::Answered { left: left - 1 };
            host.threads[thread].hand = Some(request);
            return Some(Step::Kernel(
                host.protocol.tcp_output + host.protocol.transmit,
            ));
        }
        path.on_trigger(host, cpu, TriggerSource::SystemCall);
        host.deliver(&request);
        None
    }

    /// Media: a frame counts if all of its packets arrive, in order.
    fn count_frame(&mut self, host: &mut Host, packet: &Packet) {
        let Role::Media { frame_packets, .. } = self.role else {
            return;
        };
        let frame = packet.tag / frame_packets;
        self.frame = if self.frame.1 == frame {
            (self.frame.0 + 1, frame)
        } else {
            (1, frame)
        };
        if self.frame.0 == frame_packets {
            host.endpoints[self.endpoint].frames += 1;
        }
    }
}

impl Role {
    fn is_web(&self) -> bool {
        matches!(self, Self::Web { .. })
    }
}
