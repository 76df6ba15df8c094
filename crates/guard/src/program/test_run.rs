//! The program on built frames, by the kernel's test-run facility.

use std::time::Duration;

use libbpf_rs::ProgramInput;
use plimsoll_kernel::error::bpf;

use super::Program;
use crate::error::Error;

/// Bytes that an answer may be longer than the frame that is answered.
const ANSWER_ROOM: usize = 128;

impl Program<'_> {
    /// Runs the program `repeat` times on one frame by the kernel's test-run
    /// facility; returns whether it passes and the mean time of a run.
    pub(crate) fn test_run(
        &mut self,
        frame: &[u8],
        repeat: u32,
    ) -> Result<(bool, Duration), Error> {
        self.run(ProgramInput {
            data_in: Some(frame),
            repeat,
            ..ProgramInput::default()
        })
    }

    /// The same once, for a frame of which only so many bytes are in its linear
    /// part, as adapters may deliver it. Since Linux 6.18.
    pub(crate) fn test_run_in_parts(&mut self, frame: &[u8], linear: u32) -> Result<bool, Error> {
        // struct xdp_md: `data`, `data_end` and four more words.
        let mut context = [0, linear, 0, 0, 0, 0].map(u32::to_ne_bytes).concat();
        let run = self.run(ProgramInput {
            data_in: Some(frame),
            context_in: Some(&mut context),
            repeat: 1,
            ..ProgramInput::default()
        });
        Ok(run?.0)
    }

    fn run(&mut self, input: ProgramInput<'_>) -> Result<(bool, Duration), Error> {
        let output = self
            .skeleton
            .progs
            .plimsoll_guard
            .test_run(input)
            .map_err(bpf("test-run the program"))?;
        Ok((output.return_value == libbpf_sys::XDP_PASS, output.duration))
    }

    /// Runs the program on one frame by the kernel's test-run facility; returns what
    /// it would send back.
    pub(crate) fn answer_to(&mut self, frame: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut sent = vec![0; frame.len() + ANSWER_ROOM];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut sent),
            repeat: 1,
            ..ProgramInput::default()
        };
        let program = &self.skeleton.progs.plimsoll_guard;
        let output = program
            .test_run(input)
            .map_err(bpf("test-run the program"))?;
        let answer = [libbpf_sys::XDP_TX, libbpf_sys::XDP_REDIRECT]
            .contains(&output.return_value)
            .then(|| output.data.map(|data| data.to_vec()));
        Ok(answer.flatten())
    }
}
