//! Two tables with the same content: threads decide by one, and changes are made in the other.
//! Then both change places. So whoever decides waits for nobody, however long a change takes and
//! whoever makes it: a real-time thread must not wait for one that may itself wait for the CPU.
//! (Left-right: Ramalhete & Correia 2013, here with one writer.)
//!
//! The writer waits until nobody decides by the older table, which takes a batch of frames, and
//! makes the same changes there. So it alone frees what is not needed any more.
//!
//! **Limits.** Each change is made twice, and a router of many routes needs memory for two tables.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::table::Table;

/// How soon it is looked again whether somebody decides by the older table.
const LOOK: Duration = Duration::from_millis(1);

/// The writer's side.
#[derive(Debug)]
pub(super) struct Tables {
    /// Where changes are made.
    own: Arc<Table>,
    /// What others decide by, if anybody does.
    shared: Option<Arc<ArcSwap<Table>>>,
}

impl Tables {
    pub(super) fn new(table: Table) -> Self {
        Self {
            own: Arc::new(table),
            shared: None,
        }
    }

    /// What threads decide by from now on.
    pub(super) fn share(&mut self) -> Arc<ArcSwap<Table>> {
        let shared = self.shared.get_or_insert_with(|| {
            let copy = Table::clone(&self.own);
            Arc::new(ArcSwap::from_pointee(copy))
        });
        Arc::clone(shared)
    }

    /// With all changes so far.
    pub(super) fn newest(&self) -> &Table {
        &self.own
    }

    /// Makes the same changes in both.
    pub(super) fn change(&mut self, make: impl Fn(&mut Table)) {
        self.change_own(&make);
        if let Some(shared) = &self.shared {
            self.own = shared.swap(Arc::clone(&self.own));
            self.change_own(&make);
        }
    }

    fn change_own(&mut self, make: impl Fn(&mut Table)) {
        while Arc::get_mut(&mut self.own).is_none() {
            thread::sleep(LOOK);
        }
        make(Arc::get_mut(&mut self.own).expect("nobody can begin to decide by it"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use plimsoll_kernel::routing::{Change, Kind, Route, State, Target};

    use super::*;
    use crate::forward::table::PrefixKind;

    const OWN: &str = "192.0.2.1/32";

    /// This host has the address, or not.
    fn state(has_address: bool) -> State {
        let mut state = State::default();
        let route = Route {
            kind: Kind::Local,
            metric: 0,
            tos: 0,
            interface: 0,
            next_hop: None,
            target: Target::Local,
        };
        if has_address {
            let prefix = OWN.parse().unwrap();
            state.routes.insert(prefix, vec![route]);
        }
        state
    }

    fn has_address(table: &Table) -> bool {
        let own = (OWN.parse().unwrap(), PrefixKind::Own);
        table.prefixes().any(|told| told == own)
    }

    /// Everything is read anew, and is so.
    fn read(tables: &mut Tables, has_address: bool) {
        tables.change(|table| table.apply(Change::Everything, &state(has_address)));
    }

    /// Forwarding stood still while a table was built anew under its lock, and where the
    /// follower waited for the CPU: for a lock that it had, or was next to have.
    #[test]
    fn who_decides_waits_for_no_change_and_keeps_none_from_others() {
        let mut tables = Tables::new(Table::new(Vec::new(), &state(false)));
        let shared = tables.share();
        let is_taken = AtomicBool::new(false);
        thread::scope(|scope| {
            let deciding = shared.load();
            scope.spawn(|| {
                read(&mut tables, true);
                is_taken.store(true, Ordering::Relaxed);
            });
            // The next batch is decided by the new table, although one by the old is not over.
            while !has_address(&shared.load()) {
                thread::yield_now();
            }
            assert!(!has_address(&deciding), "nothing changes in the middle");
            assert!(!is_taken.load(Ordering::Relaxed), "the old table is in use");
        });
        assert!(has_address(tables.newest()) && has_address(&shared.load()));
        // Both are changed, whichever is whose turn.
        for has in [false, true, true, false] {
            read(&mut tables, has);
            assert_eq!(has_address(tables.newest()), has);
            assert_eq!(has_address(&shared.load()), has);
        }
    }

    /// Without threads that decide there is one table.
    #[test]
    fn alone_it_changes_its_own() {
        let mut tables = Tables::new(Table::new(Vec::new(), &state(false)));
        read(&mut tables, true);
        assert!(has_address(tables.newest()));
        assert!(has_address(&tables.share().load()));
    }
}
