//! The numbers by which sources are judged, and why each is what it is. The guard's build
//! script writes them into a header for the BPF program, which has no others. One,
//! [`PROFILE_ROOM_PARTS`], reaches it as a setting: the watermark of full queues.

/// Credit of one packet, as a power of two.
pub const PACKET_SHIFT: u32 = 16;
/// Credit of one packet.
pub const PACKET: u32 = 1 << PACKET_SHIFT;
/// The unit of parts of credit, and of factors by which a level moves, as a power of two.
pub const PART_SHIFT: u32 = 8;
/// All of some credit; one times.
pub const PART: u32 = 1 << PART_SHIFT;
/// The unit of a node's part of its own level, as a power of two.
pub const WHOLE_SHIFT: u32 = 24;
/// All of a node's own level.
pub const WHOLE: u32 = 1 << WHOLE_SHIFT;
/// Ticks of its share that a source may save up. More forgives burstier clients; it
/// lets as much in at once when a flood begins.
pub const BURST_TICKS: u32 = 8;
/// Packets that it may save up at least: those of slow senders come in pairs, too.
pub const BURST_PACKETS: u32 = 8;
/// The shortest time between two changes of a share, in ticks: shorter than a person
/// notices, long enough to count packets.
pub const EPOCH_TICKS: u32 = 4;
/// The longest: two seconds. In between, an epoch lasts until enough packets were seen
/// and everybody could earn [`EPOCH_CREDIT_PACKETS`]: before that, a change of the share
/// shows no effect, and another one would be too much.
pub const EPOCH_TICKS_MAX: u32 = 512;
/// Packets whose credit everybody could earn in an epoch.
pub const EPOCH_CREDIT_PACKETS: u32 = 2;
/// An epoch that is older than this is of another overload.
pub const STALE_TICKS: u32 = 2 * EPOCH_TICKS_MAX;
/// Packets that a channel's epoch wants to have seen.
pub const CHANNEL_EPOCH_PACKETS: u32 = 64;
/// The same of networks and subnets, of which there are many.
pub const NODE_EPOCH_PACKETS: u32 = 16;
/// All but one of so many parts of what a channel admits is wanted in profile.
pub const CHANNEL_UNWANTED_PARTS: u32 = 16;
/// All but one of so many parts of a network's or subnet's credit is to be used by those
/// within: with all of it, whoever comes first would take what is left.
pub const NODE_UNWANTED_PARTS: u32 = 8;
/// A level goes one of so many parts of the way at each step: there are three levels, and
/// all move at the same time. With half of the way they went up and down for ever.
pub const STEP_PARTS: u32 = 3;
/// The most and the least that use may seem to be of what is wanted.
pub const STEP_MAX: u32 = 4;
/// The last of so many parts of a network's or subnet's credit is for those within who have
/// saved theirs: the less is left, the more.
pub const SAVERS_PARTS: u32 = 2;
/// Calm for so long, a channel's packets are no longer judged by source: half a second.
pub const CALM_TICKS: u32 = 128;
/// The same once its queue was found empty: a flood fills it again within a tick, and pauses
/// of a scheduler or of a virtual machine are shorter.
pub const EMPTY_CALM_TICKS: u32 = 8;
/// The longest that a source without credit waits before its level is looked at anew:
/// half a second. Longer would be cheaper yet. It would also hold a source back that may
/// have more by now.
pub const WAIT_TICKS_MAX: u32 = 128;
/// Strangers, less all others, from which on most of them are passed over.
pub const STRANGERS_MIN: u32 = 256;
/// As many are counted: 256 packets of others end it.
pub const STRANGERS_MAX: u32 = 512;
/// Of so many strangers one is looked at then.
pub const STRANGERS_LOOK: u32 = 8;
/// In networks whose hosts may have more than a packet in so many ticks, all are looked
/// at.
pub const STRANGERS_TICKS: u32 = 4;
/// Sources whose share is less than a packet in so many ticks have turns: half a second.
pub const TURN_TICKS: u32 = 128;
/// A newcomer that has a turn comes as if it had waited for so many. Nobody else does for long.
pub const NEWCOMER_TURNS: u32 = 4;
/// The longest that is remembered of waiting for a turn: half a minute.
pub const TURN_AGE_MAX: u16 = 8192;
/// Packets that a channel's epoch wants to have seen while its sources have turns. With 64 the
/// share's own noise would decide whose turn it is.
pub const TURNS_EPOCH_PACKETS: u32 = 1024;
/// Where those within have more than this, a newcomer is not divided with: epochs are short.
pub const NEWCOMER_LEVEL: u32 = 4 * PACKET;
/// The smallest and the largest share: 0.06 and two million packets a second.
pub const LEVEL_MIN: u32 = 16;
/// See [`LEVEL_MIN`]. Eight of it are still 32 bits of credit.
pub const LEVEL_MAX: u32 = (1 << 29) - 1;
/// A source asks for far less than its share if so much of its credit was left, of 256:
/// seven of eight ticks'. One that floods has that after a pause of 29 ms only.
pub const SILENT: u32 = 224;
/// Steps of `MurmurHash3`'s finalizer for 32 bits, which mixes hashes: first and last it adds the
/// bits that lie so far above (without carry), …
pub const MIX_SHIFT: u32 = 16;
/// … multiplies by this, …
pub const MIX_FIRST_FACTOR: u32 = 0x85eb_ca6b;
/// … adds those that lie so far above, …
pub const MIX_MIDDLE_SHIFT: u32 = 13;
/// … and multiplies by this.
pub const MIX_SECOND_FACTOR: u32 = 0xc2b2_ae35;
/// Entries of a set.
pub const WAYS: usize = 4;
/// A network is all addresses that differ in so many bits of IPv4, or of the upper half of
/// IPv6: a /16, or a /48.
pub const NETWORK_BITS: u32 = 16;
/// A subnet is all IPv4 addresses that differ in so many bits: a /24. Of IPv6 it is a /64.
pub const SUBNET_BITS: u32 = 8;

/// Known sources have one of so many parts for themselves: of what the consumer takes, and of
/// a tick's packets.
pub const KNOWN_PARTS: u32 = 2;
/// Packets in profile have one of so many parts of the room above the high watermark.
pub const PROFILE_ROOM_PARTS: u32 = 2;
/// Packets in profile may overdraw a tick's packets by one of so many parts: there are not
/// equally many in each tick.
pub const OVERDRAWN_PARTS: u32 = 4;
/// Packets that no socket's queue bounds are due in so many parts of a tick, as a power of
/// two: an eighth each half a millisecond. All at its beginning would come faster than they are worked
/// on, and the receive ring, which is everybody's, would overflow.
pub const BUDGET_PARTS_SHIFT: u32 = 3;
/// So many may come ahead of that: half a small ring, and some batches of a driver. (Of all
/// channels it would spoil the division among sources where little is admitted.)
pub const BUDGET_AHEAD: u32 = 128;

/// Known is who was served in [`KNOWN_PERIODS_MIN`] periods of so many seconds, as a power
/// of two: of four seconds, …
pub const KNOWN_PERIOD_SHIFT: u32 = 2;
/// … in three of them, …
pub const KNOWN_PERIODS_MIN: u16 = 3;
/// … the last of them no longer ago than this: an hour.
pub const KNOWN_AGE_PERIODS: u16 = 900;

/// A smaller backlog has no room that could be kept for anybody.
pub const BACKLOG_MIN: u32 = 8;
/// The last of so many parts of a queue is for packets in profile, …
pub const BACKLOG_KEPT_PARTS: u32 = 8;
/// … and the last of so many for known sources alone: forged addresses would fill the rest
/// before their share has settled.
pub const BACKLOG_KNOWN_PARTS: u32 = 16;
/// A server is behind if no more than one of so many parts of its accept queue is free.
pub const BACKLOG_BEHIND_PARTS: u32 = 4;
/// A quarter of a second. Shorter, it is a burst, for which the queues are there: who loses
/// a SYN waits a second for the next.
pub const BACKLOG_BURST_TICKS: u16 = 60;
