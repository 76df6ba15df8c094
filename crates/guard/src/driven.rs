//! What strangers and the kernel write under `/proc`, without it: for fuzzing, and for
//! tests that do the same with fewer inputs.

use std::os::unix::ffi::OsStrExt as _;

use crate::owner::control_group::parse_mounts;

/// Any bytes as a table of mounts: nothing panics, and a path is one of the table's.
///
/// # Panics
///
/// If that is not so: our own fault.
pub fn check_proc(bytes: &[u8]) {
    let Some(path) = parse_mounts(bytes) else {
        return;
    };
    let path = path.as_os_str().as_bytes();
    assert!(!path.contains(&b' ') || bytes.contains(&b'\\'), "{path:?}");
    // Written as the kernel writes it, it is read again.
    let escaped = path.iter().map(|byte| format!("\\{byte:03o}"));
    let table = format!("none {} cgroup2 rw 0 0\n", escaped.collect::<String>());
    let again = parse_mounts(table.as_bytes()).expect("a table of one");
    assert_eq!(again.as_os_str().as_bytes(), path);
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, proptest};

    use super::check_proc;

    proptest! {
        #[test]
        fn no_table_of_mounts_harms(
            path in vec(any::<u8>(), 0..20),
            escapes in "(\\\\[0-9]{0,4}){0,3}",
            bytes in vec(any::<u8>(), 0..100),
        ) {
            check_proc(&bytes);
            let table = [b"a ", path.as_slice(), escapes.as_bytes(), b" cgroup2 rw\n"].concat();
            check_proc(&[table, bytes].concat());
        }
    }
}
