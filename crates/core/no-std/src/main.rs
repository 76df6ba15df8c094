//! A program without std that uses `plimsoll-core`: if the crate or anything
//! below it pulled std in, this would have two panic handlers and not compile.
//! `make no-std` builds and runs it; it exits with 0 if a channel works.
//!
//! Only the C library is linked, for its start-up code, `aligned_alloc`, `free`
//! and `abort`. A kernel would bring its own.

#![no_std]
#![no_main]

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{c_int, c_void};
use core::panic::PanicInfo;

use plimsoll_core::channel::{Admission, ChannelConfig, channel};
use plimsoll_core::time::Instant;

#[link(name = "c")]
unsafe extern "C" {
    fn aligned_alloc(align: usize, size: usize) -> *mut c_void;
    fn free(pointer: *mut c_void);
    fn abort() -> !;
}

struct CLibrary;

#[global_allocator]
static ALLOCATOR: CLibrary = CLibrary;

// SAFETY: the C library's allocator is a correct allocator, may be called from
// any thread, and never unwinds.
unsafe impl GlobalAlloc for CLibrary {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // C asks for a size that is a multiple of the alignment.
        let layout = layout.pad_to_align();
        // SAFETY: the alignment of a layout is a power of two, which is what
        // `aligned_alloc` demands; the caller vouches for a size above 0.
        unsafe { aligned_alloc(layout.align(), layout.size()).cast() }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _: Layout) {
        // SAFETY: the caller vouches that it came from `alloc` above.
        unsafe { free(pointer.cast()) }
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: may be called at any time.
    unsafe { abort() }
}

/// The precompiled `alloc` refers to it for unwinding, which never happens here.
// SAFETY: nothing else defines it without std, and nothing calls it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// Entry point, called by the C library's start-up code.
// SAFETY: no other `main` is linked.
#[unsafe(no_mangle)]
extern "C" fn main() -> c_int {
    let Ok((mut producer, mut consumer)) = channel(&ChannelConfig::drop_tail(4)) else {
        return 1;
    };
    let queued = producer.push(7_u8, Instant::ZERO) == Admission::Queued;
    let taken = consumer.pop(Instant::ZERO).map(|arrival| arrival.item);
    c_int::from(!queued || taken != Some(7))
}
