//! A task of a tokio runtime that sends one packet every 40 µs.

use std::time::Duration;

use plimsoll_timers::tokio::{SoftTime, SoftTimeConfig};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let time = SoftTime::new(SoftTimeConfig::default())?;
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // From now on the runtime asks whenever it parks and is unparked.
    time.install(&mut builder);
    builder.build()?.block_on(async {
        let mut next = time.now();
        for _packet in 0..100 {
            // After a long gap the series starts anew: no burst.
            next = (next + Duration::from_micros(40)).max(time.now());
            time.sleep_until(next).await?;
        }
        Ok(())
    })
}
