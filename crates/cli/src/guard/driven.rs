//! Settings without a guard: for fuzzing, and for tests that do the same with fewer inputs.

/// Any bytes as a configuration file: nothing panics. It has settings that the command
/// line takes, or a mistake with its line.
///
/// # Panics
///
/// If that is not so: our own fault.
pub fn check_settings(bytes: &[u8]) {
    // Another file is refused when it is read.
    if let Ok(text) = std::str::from_utf8(bytes) {
        super::config_file::check(text);
    }
}
