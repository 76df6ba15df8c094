//! Groups of threads whose members end, and their accounts.

use super::*;
use crate::scheduling::Level;

fn shared() -> Shared {
    Shared::new(Fraction::from_percent(50))
}

/// No thread's number.
const NONE: i32 = i32::MAX;

/// Of this thread's clock.
fn member(class: Class) -> Member {
    let clock = ThreadClock::of(0).unwrap();
    let thread = Limited { tid: NONE, class };
    Member {
        thread,
        clock,
        seen: Duration::ZERO,
        recent: Duration::ZERO,
    }
}

fn limited(tid: i32) -> Limited {
    let class = Class::Idle;
    Limited { tid, class }
}

/// A thread of this process that takes no CPU time, and how to end it.
fn blocked() -> (i32, impl FnOnce()) {
    let (ready, tids) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        ready.send(nix::unistd::gettid().as_raw()).unwrap();
        let _ = ended.recv();
    });
    let end = move || {
        drop(end);
        thread.join().unwrap();
    };
    (tids.recv().unwrap(), end)
}

fn tids_of(account: &Account) -> Vec<i32> {
    let threads = account.threads.iter();
    threads.map(|member| member.thread.tid).collect()
}

/// The kernel knows a thread for a moment longer than its process does.
fn until_gone(tid: i32) {
    let end = Instant::now() + Duration::from_secs(10);
    while ThreadClock::of(tid).is_ok() {
        assert!(Instant::now() < end, "{tid} is gone");
        thread::sleep(Duration::from_millis(1));
    }
}

/// After a panic of the watcher, or where a thread could not be placed, threads ran on as
/// demoted ones.
#[test]
fn threads_that_nobody_counts_any_more_are_promoted() {
    let (tid, end_it) = blocked();
    let class = Class::Beneath;
    let account = Account::open(&[Limited { tid, class }], &shared(), CoreInstant::ZERO).unwrap();
    let beneath = Level::of(tid).unwrap();
    set_class(tid, Class::Idle).unwrap();
    assert!(Level::of(tid).unwrap() < beneath);
    drop(account);
    assert_eq!(Level::of(tid).unwrap(), beneath);
    end_it();
}

/// They were promoted as they were named, and the first one's flood left the second no turn: beside a process
/// that computes a thread with a little to do had one in 50 to 83 of 250 periods, instead of in 242 to 250.
#[test]
fn who_used_least_lately_runs_first() {
    let (calm, end_it) = blocked();
    let class = Class::Beneath;
    let threads = [0, calm].map(|tid| Limited { tid, class });
    let mut account = Account::open(&threads, &shared(), CoreInstant::ZERO).unwrap();
    let clock = ThreadClock::of(0).unwrap();
    let began = clock.time().unwrap();
    while clock.time().unwrap() - began < POLLING_PERIOD {}
    account.times();
    account.place().unwrap();
    assert_eq!(tids_of(&account), [calm, 0]);
    // What it used is forgotten before long.
    for _ in 0..64 {
        account.times();
    }
    let mut all = account.threads.iter();
    assert!(all.all(|member| member.recent < POLLING_PERIOD / 10));
    end_it();
}

/// A driver's polling thread may end while others of its CPU go on.
#[test]
fn a_group_outlives_a_thread_of_it() {
    let (other, end_it) = blocked();
    let shared = shared();
    let threads = [limited(0), limited(other)];
    let mut account = Account::open(&threads, &shared, CoreInstant::ZERO).unwrap();
    end_it();
    until_gone(other);
    account
        .check(&shared, CoreInstant::from_nanos(1_000_000))
        .unwrap();
    assert_eq!(tids_of(&account), [0]);
    account.threads.clear();
    let gone = account.check(&shared, CoreInstant::from_nanos(2_000_000));
    assert!(gone.is_err());
}

/// One that had ended before kept its group from being watched: the others stayed real-time
/// threads without a limit.
#[test]
fn a_group_is_watched_without_those_that_have_ended() {
    let ended = thread::spawn(|| nix::unistd::gettid().as_raw());
    let shared = shared();
    let (gone, there) = (limited(ended.join().unwrap()), limited(0));
    until_gone(gone.tid);
    let open = |threads: &[Limited]| Account::open(threads, &shared, CoreInstant::ZERO);
    let account = open(&[gone, there]).expect("one is there");
    assert_eq!(tids_of(&account), [there.tid]);
    assert!(open(&[gone]).is_none());
}

/// Beyond its half it leaves the CPU to those that it provides with work.
#[test]
fn who_is_ahead_goes_beneath_until_the_next_period() {
    let budget = |ppm| Budget::new(ppm, Duration::ZERO, CoreInstant::ZERO);
    let mut account = Account {
        threads: vec![member(Class::Ahead), member(Class::Polling)],
        cpus: Vec::new(),
        budget: budget(500_000).unwrap(),
        ahead: budget(500_000 / AHEAD),
        due: CoreInstant::ZERO,
    };
    let classes = |account: &Account| {
        let threads = account.threads.iter();
        threads
            .map(|member| account.class_of(&member.thread))
            .collect::<Vec<_>>()
    };
    let us = |us: u64| CoreInstant::from_nanos(us * 1000);
    let used = |account: &mut Account, used_us, now_us| {
        let ahead = account.ahead.as_mut().unwrap();
        ahead.on_time(Duration::from_micros(used_us), us(now_us))
    };
    // Of a period of 2 ms.
    assert_eq!(used(&mut account, 400, 1000), Change::None);
    assert_eq!(classes(&account), [Class::Ahead, Class::Polling]);
    assert_eq!(used(&mut account, 500, 1200), Change::Inhibit);
    assert_eq!(classes(&account), [Class::Beneath, Class::Polling]);
    assert_eq!(used(&mut account, 1100, 2000), Change::Allow);
    assert_eq!(classes(&account), [Class::Ahead, Class::Polling]);
}

/// Who provides others with work was demoted with them when they had used the limit up, and
/// a receive ring overflowed beside a process that computes.
#[test]
fn who_is_ahead_keeps_its_half_and_all_keep_to_the_limit() {
    let budget = |ppm| Budget::new(ppm, Duration::ZERO, CoreInstant::ZERO);
    let mut account = Account {
        threads: vec![member(Class::Ahead), member(Class::Polling)],
        cpus: Vec::new(),
        budget: budget(600_000).unwrap(),
        ahead: budget(600_000 / AHEAD),
        due: CoreInstant::ZERO,
    };
    let (mut now, mut ahead, mut all) = (CoreInstant::ZERO, Duration::ZERO, Duration::ZERO);
    let step = Duration::from_micros(10);
    let classes =
        |account: &Account| [0, 1].map(|at| account.class_of(&account.threads[at].thread));
    let mut idle_steps = 0;
    for _ in 0..100_000 {
        // A fifth of the time is for those ahead, less than their half of the limit; the
        // others want all.
        let [first, second] = classes(&account);
        assert_eq!(first, Class::Ahead);
        ahead += step / 5;
        all += step / 5;
        match second {
            Class::Polling => all += step * 4 / 5,
            class => assert_eq!(class, Class::Idle),
        }
        idle_steps += u32::from(second == Class::Idle);
        now += step;
        let _ = account.on_times((ahead, all), false, now);
    }
    let share = all.as_secs_f64() / Duration::from_nanos(now.as_nanos()).as_secs_f64();
    assert!(is_near(share, 60.0), "{share}");
    assert!(idle_steps > 10_000, "{idle_steps}");
    // Beyond their half they are no longer for certain.
    while classes(&account)[0] == Class::Ahead {
        (now, ahead, all) = (now + step, ahead + step, all + step);
        let _ = account.on_times((ahead, all), false, now);
    }
    assert!([Class::Beneath, Class::Idle].contains(&classes(&account)[0]));
}

/// A thread that always has work, and runs for all of the time that it is not
/// demoted; then only as others leave the CPU to it.
struct Flooded {
    budget: Budget,
    now: CoreInstant,
    time: Duration,
    /// Part of the time that a demoted thread gets, in percent.
    idle_percent: u32,
    promoted: Duration,
    /// What a look takes.
    look: Duration,
    looks: Duration,
}

impl Flooded {
    fn new(limit_ppm: u64, idle_percent: u32) -> Self {
        Self {
            budget: Budget::new(limit_ppm, Duration::ZERO, CoreInstant::ZERO).unwrap(),
            now: CoreInstant::ZERO,
            time: Duration::ZERO,
            idle_percent,
            promoted: Duration::ZERO,
            look: Duration::ZERO,
            looks: Duration::ZERO,
        }
    }

    /// Goes on until `end_ms`, looking when it is due. Returns the part of all
    /// time that was spent promoted.
    fn run(&mut self, end_ms: u64) -> f64 {
        while self.now < CoreInstant::from_nanos(end_ms * 1_000_000) {
            self.go_on(Duration::MAX);
        }
        self.promoted.as_nanos() as f64 / self.now.as_nanos() as f64
    }

    /// Goes on to the next look, or for `most`, and looks.
    fn go_on(&mut self, most: Duration) {
        let passed = self.budget.due(self.now).min(most);
        self.now += passed;
        if self.budget.limit.inhibited() {
            self.time += passed * self.idle_percent / 100;
        } else {
            self.time += passed;
            self.promoted += passed;
        }
        // The watcher comes before the thread.
        self.now += self.look;
        self.looks += self.look;
        self.budget.on_others(self.look);
        let _ = self.budget.on_time(self.time, self.now);
    }
}

fn is_near(share: f64, percent: f64) -> bool {
    (share * 100.0 - percent).abs() < 1.0
}

#[test]
fn a_thread_that_always_has_work_gets_its_limit() {
    for percent in [10, 30, 50, 85] {
        let share = Flooded::new(percent * 10_000, 0).run(1000);
        assert!(is_near(share, percent as f64), "{percent} %: {share}");
    }
}

/// It was nobody's, and a compute-bound process missed it: with a limit of 50 % it got
/// 42 %.
#[test]
fn watching_is_part_of_what_the_limit_is_for() {
    let mut flooded = Flooded::new(500_000, 0);
    flooded.look = Duration::from_micros(25);
    let promoted = flooded.run(1000);
    let watched = flooded.looks.as_nanos() as f64 / flooded.now.as_nanos() as f64;
    assert!(watched > 0.02, "{watched}");
    assert!(is_near(promoted + watched, 50.0), "{promoted} + {watched}");
}

#[test]
fn a_period_takes_few_looks() {
    let mut flooded = Flooded::new(750_000, 0);
    flooded.look = Duration::from_micros(1);
    flooded.run(1000);
    let looks = flooded.looks.as_micros();
    assert!(looks <= 3 * 500, "{looks} in 500 periods");
}

/// Each time one group was due, all were looked at: beside 32 that are loaded at different times
/// that was most of what watching took.
#[test]
fn only_groups_that_are_due_are_looked_at() {
    let shared = shared();
    let (tid, end_it) = blocked();
    let us = |us: u64| CoreInstant::from_nanos(us * 1000);
    // May run for 1000 µs at first.
    let open = |at: u64| {
        let class = Class::Beneath;
        Account::open(&[Limited { tid, class }], &shared, us(at)).unwrap()
    };
    let mut accounts: Vec<Account> = (0..32).map(|at| open(at * 40)).collect();
    let mut turn = |now| {
        let pause = turn(&mut accounts, &shared, us(now));
        let is_looked_at = |account: &&Account| account.budget.at == us(now);
        (accounts.iter().filter(is_looked_at).count(), pause)
    };
    // With those that would be due before the next look.
    assert_eq!(turn(1400), (13, Duration::from_micros(120)));
    assert_eq!(turn(1520), (3, Duration::from_micros(120)));
    end_it();
}

#[test]
fn what_an_idle_cpu_gives_is_not_counted() {
    let mut flooded = Flooded::new(300_000, 100);
    assert!(is_near(flooded.run(1000), 30.0));
    assert_eq!(flooded.time.as_nanos(), u128::from(flooded.now.as_nanos()));
}

/// A demoted thread had up to a quarter of a CPU that a process wanted, beyond its limit.
#[test]
fn what_a_demoted_thread_takes_from_others_is_counted() {
    let mut account = Account {
        threads: vec![member(Class::Ahead), member(Class::Polling)],
        cpus: Vec::new(),
        budget: Budget::new(400_000, Duration::ZERO, CoreInstant::ZERO).unwrap(),
        ahead: Budget::new(400_000 / AHEAD, Duration::ZERO, CoreInstant::ZERO),
        due: CoreInstant::ZERO,
    };
    let mut share = |is_wanted| {
        let (mut now, mut ahead, mut all) = (account.budget.at, account.times().0, Duration::ZERO);
        all += account.budget.seen;
        let (began, at) = (all, now);
        let step = Duration::from_micros(10);
        for _ in 0..100_000 {
            // Both want all. Who is demoted has a quarter.
            let part = match account.budget.limit.inhibited() {
                true => step / 4,
                false => step,
            };
            (now, ahead, all) = (now + step, ahead + part / 2, all + part);
            let _ = account.on_times((ahead, all), is_wanted, now);
        }
        let passed = Duration::from_nanos(now.as_nanos() - at.as_nanos());
        (all - began).as_secs_f64() / passed.as_secs_f64()
    };
    assert!(is_near(share(true), 40.0));
    assert!(share(false) > 0.5, "what nobody else wants is not counted");
}

/// The meter corrects the limit every 10 ms. Each correction used to begin a new
/// period with nothing used.
#[test]
fn corrections_forget_neither_use_nor_debt() {
    let mut flooded = Flooded::new(300_000, 0);
    // Ten in each period, by a whole percent.
    for correction in 0..5000 {
        flooded.budget.set_limit(300_000 + correction % 2 * 10_000);
        flooded.go_on(POLLING_PERIOD / 10);
    }
    let share = flooded.run(1000);
    assert!(is_near(share, 30.5), "{share}");
}

#[test]
fn overrun_is_paid_for_also_at_another_limit() {
    let mut budget = Budget::new(500_000, Duration::ZERO, CoreInstant::ZERO).unwrap();
    let ms = |ms: u64| CoreInstant::from_nanos(ms * 1_000_000);
    // The watcher came late: 2 ms used where 1 was allowed.
    assert_eq!(
        budget.on_time(Duration::from_millis(2), ms(2)),
        Change::Inhibit
    );
    budget.set_limit(400_000);
    assert_eq!(budget.due(ms(2)), Duration::from_millis(2));
    assert_eq!(
        budget.on_time(Duration::from_millis(2), ms(4)),
        Change::Allow
    );
    // 1 ms of debt, of which 0.8 were paid.
    assert_eq!(budget.limit.left(), Duration::from_micros(600));
}

/// The keeper of a process that hung had put its threads back, and the process's other thread went on
/// to demote and promote them. Needs root.
#[test]
fn whoever_hangs_has_no_thread_demoted_or_promoted() {
    let is_over = Arc::new(AtomicBool::new(false));
    let (ready, tids) = std::sync::mpsc::channel();
    let busy = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            ready.send(nix::unistd::gettid().as_raw()).unwrap();
            while !is_over.load(Ordering::Relaxed) {}
        }
    });
    let tid = tids.recv().unwrap();
    let own = Scheduling::of(tid).unwrap();
    let class = Class::Beneath;
    let shared = Arc::new(Shared::new(Fraction::from_percent(1)));
    let watcher = thread::spawn({
        let shared = Arc::clone(&shared);
        move || watch(&shared, &[vec![Limited { tid, class }]])
    });
    let end = Instant::now() + Duration::from_secs(20);
    let goes_on = || {
        let before = Level::of(tid).unwrap();
        while Level::of(tid).unwrap() == before {
            assert!(Instant::now() < end, "nothing is done");
        }
    };
    goes_on();
    // Long ago.
    shared.heard_ns.store(1, Ordering::Relaxed);
    while !shared.is_forsaken() {
        thread::sleep(POLLING_PERIOD);
    }
    thread::sleep(5 * POLLING_PERIOD);
    own.give_to(tid).unwrap();
    let level = Level::of(tid).unwrap();
    for _ in 0..20 {
        thread::sleep(POLLING_PERIOD);
        assert_eq!(Level::of(tid).unwrap(), level);
    }
    shared.heard_ns.store(0, Ordering::Relaxed);
    goes_on();
    is_over.store(true, Ordering::Relaxed);
    shared.stop.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
    busy.join().unwrap();
}

/// The look itself costs the CPU of a polling thread some percent, also where two groups share it.
#[test]
fn what_watching_took_is_charged_in_equal_parts_to_those_on_its_cpu() {
    let everywhere: Vec<usize> =
        (0..nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_CONF)
            .unwrap()
            .unwrap() as usize)
            .collect();
    let account = |cpus: &[usize]| Account {
        threads: Vec::new(),
        due: CoreInstant::ZERO,
        cpus: cpus.to_vec(),
        budget: Budget::new(300_000, Duration::ZERO, CoreInstant::ZERO).unwrap(),
        ahead: None,
    };
    let mut accounts = [account(&everywhere), account(&[]), account(&everywhere)];
    let clock = ThreadClock::of(0).unwrap();
    let began = clock.time().unwrap();
    let mut own = began;
    while clock.time().unwrap() < began + Duration::from_millis(1) {}
    charge(&mut accounts, clock, &mut own);
    let part = (own - began) / 2;
    assert!(part >= Duration::from_micros(500), "{part:?}");
    let owed = accounts.map(|account| account.budget.owed);
    assert_eq!(owed, [part, Duration::ZERO, part]);
}

/// What softirqs take beside the threads is taken off their limit. Too much of it would leave them
/// none, and a load that ends would leave them more than the limit.
#[test]
fn the_meter_corrects_the_limit_between_its_half_and_the_whole() {
    let limiter = PollingLimit::start(Fraction::from_percent(40), Vec::new()).unwrap();
    let corrected = |percent: u32, is_wanted, times: usize| {
        for _ in 0..times {
            limiter.on_observation(&Observation {
                elapsed: Duration::from_millis(10),
                network: Duration::from_millis(10) * percent / 100,
                is_wanted,
            });
        }
        limiter.shared.limit_ppm.load(Ordering::Relaxed)
    };
    assert_eq!(corrected(60, true, 1), 360_000);
    assert_eq!(corrected(60, true, 100), 200_000);
    assert_eq!(corrected(20, true, 1), 240_000);
    assert_eq!(corrected(0, true, 100), 400_000);
    assert_eq!(corrected(60, true, 1), 360_000);
    assert_eq!(corrected(60, false, 1), 400_000, "nobody else wants it");
}

/// A guard's thread would have run as a real-time one for good. Needs root.
#[test]
fn whoever_governs_runs_as_before_once_there_is_no_limit() {
    let own = Scheduling::of(0).unwrap();
    let limiter = PollingLimit::start(Fraction::from_percent(40), Vec::new()).unwrap();
    assert_ne!(Scheduling::of(0).unwrap(), own);
    drop(limiter);
    assert_eq!(Scheduling::of(0).unwrap(), own);
}
