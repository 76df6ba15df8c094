//! A naive round robin, and operations that are played on it and on the poller.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// The naive round robin: a flag per direction, searched one by one.
struct Model {
    work: Vec<u32>,
    asked: Vec<bool>,
    inhibited: Vec<bool>,
    last: usize,
}

impl Model {
    fn new(sources: usize) -> Self {
        Self {
            work: vec![0; 2 * sources],
            asked: vec![false; 2 * sources],
            inhibited: vec![false; sources],
            last: 2 * sources - 1,
        }
    }

    fn next(&mut self) -> Option<usize> {
        let count = self.work.len();
        let slot = (1..=count)
            .map(|step| (self.last + step) % count)
            .find(|&slot| self.asked[slot] && !(slot % 2 == 0 && self.inhibited[slot / 2]))?;
        self.last = slot;
        Some(slot)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Arrive { slot: usize, packets: u32 },
    Serve,
    Inhibit(usize),
    Allow(usize),
}

pub(super) fn ops(sources: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..2 * sources, 1..40u32).prop_map(|(slot, packets)| Op::Arrive { slot, packets }),
        6 => Just(Op::Serve),
        1 => (0..sources).prop_map(Op::Inhibit),
        1 => (0..sources).prop_map(Op::Allow),
    ];
    prop::collection::vec(op, 1..400)
}

fn which(slot: usize) -> (Direction, Directions) {
    if slot.is_multiple_of(2) {
        (Direction::Receive, Directions::RECEIVE)
    } else {
        (Direction::Transmit, Directions::TRANSMIT)
    }
}

/// Plays `ops` on both; panics where they differ.
pub(super) fn play(sources: usize, ops: Vec<Op>) {
    let (mut poller, ids) = poller(&vec![SEPARATE; sources]);
    let mut model = Model::new(sources);
    for op in ops {
        match op {
            Op::Arrive { slot, packets } => {
                model.work[slot] += packets;
                let (source, which) = (ids[slot / 2], which(slot).1);
                let enabled = poller.interrupts(source);
                if enabled.receive && which.receive || enabled.transmit && which.transmit {
                    let _ = poller.on_interrupt(source, which);
                    model.asked[slot] = true;
                }
            }
            Op::Inhibit(source) => {
                let _ = poller.inhibit_input(ids[source]);
                model.inhibited[source] = true;
            }
            Op::Allow(source) => {
                poller.allow_input(ids[source]);
                model.asked[2 * source] |= model.inhibited[source];
                model.inhibited[source] = false;
            }
            Op::Serve => serve(&mut poller, &mut model),
        }
        for slot in 0..2 * sources {
            let inhibited = slot % 2 == 0 && model.inhibited[slot / 2];
            let enabled = poller.interrupts(ids[slot / 2]);
            let enabled = if slot % 2 == 0 {
                enabled.receive
            } else {
                enabled.transmit
            };
            assert_eq!(enabled, !model.asked[slot] && !inhibited, "slot {slot}");
            assert!(model.work[slot] == 0 || !enabled, "work and nobody looks");
        }
    }
}

fn serve(poller: &mut Poller, model: &mut Model) {
    let turn = poller.poll_next(Instant::ZERO);
    let slot = model.next();
    let given = turn.map(|turn| (turn.source.index(), turn.direction));
    assert_eq!(given, slot.map(|slot| (slot / 2, which(slot).0)));
    let (Some(turn), Some(slot)) = (turn, slot) else {
        return;
    };
    let handled = model.work[slot].min(turn.quota);
    model.work[slot] -= handled;
    model.asked[slot] = model.work[slot] > 0;
    let _ = poller.on_turn_done(turn, handled, model.asked[slot]);
}
