//! What a test program says of its tests.

/// What came out.
#[derive(Default)]
pub(crate) struct Said {
    /// How many passed.
    pub(crate) passed: u32,
    /// Names of those that failed.
    pub(crate) failed: Vec<String>,
    is_listed: bool,
}

impl Said {
    /// All of it.
    pub(crate) fn of(text: &str) -> Self {
        let mut said = Self::default();
        text.lines().for_each(|line| said.read(line));
        said
    }

    /// The list of failures stands behind the last line `failures:`. Before it, under the same
    /// words, stands what they wrote.
    fn read(&mut self, line: &str) {
        let line = line.trim_end();
        if line == "failures:" {
            self.is_listed = true;
            self.failed.clear();
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.is_listed = false;
            let mut words = result
                .split_whitespace()
                .skip_while(|word| !is_number(word));
            self.passed += words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        } else if let Some(name) = line.strip_prefix("    ")
            && self.is_listed
            && !name.contains(' ')
        {
            self.failed.push(name.to_owned());
        }
    }
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}
