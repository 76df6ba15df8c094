//! The two text formats that Prometheus and its relatives read.

use std::collections::BTreeSet;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// <https://prometheus.io/docs/instrumenting/exposition_formats/>
    Text,
}

impl Format {
    /// What a client takes by its `Accept` header.
    pub(crate) fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// What is collected now. All names begin with `prefix` and an underscore.
    ///
    /// # Panics
    ///
    /// If writing to a string fails, which it cannot.
    #[must_use]
    pub fn encode(self, prefix: &str, collector: Box<dyn Collector>) -> String {
        let mut registry = Registry::with_prefix(prefix);
        registry.register_collector(collector);
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("writing to a string cannot fail");
        self.of_open_metrics(text)
    }

    /// From `OpenMetrics`, where a counter is described without the ending of its
    /// samples.
    fn of_open_metrics(self, text: String) -> String {
        if self == Self::OpenMetrics {
            return text;
        }
        let mut counters = BTreeSet::new();
        for line in text.lines() {
            let name = line.strip_prefix("# TYPE ");
            counters.extend(name.and_then(|name| name.strip_suffix(" counter")));
        }
        let mut older = String::with_capacity(text.len());
        for line in text.lines() {
            let mut words = line.splitn(4, ' ');
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
                (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(name) => {
                    older += &format!("# {what} {name}_total {rest}");
                }
                _ => older += line,
            }
            older.push('\n');
        }
        older
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_describes_counters_by_their_full_name() {
        let text = "# HELP a Two b\n# TYPE a counter\n# UNIT a b\na_total{c=\"# d\"} 1\n\
                    # HELP e_f G\n# TYPE e_f gauge\ne_f 2.0\n# EOF\n";
        assert_eq!(Format::OpenMetrics.of_open_metrics(text.to_owned()), text);
        let older = "# HELP a_total Two b\n# TYPE a_total counter\na_total{c=\"# d\"} 1\n\
                     # HELP e_f G\n# TYPE e_f gauge\ne_f 2.0\n";
        assert_eq!(Format::Text.of_open_metrics(text.to_owned()), older);
    }

    #[test]
    fn who_asks_for_open_metrics_gets_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        assert_eq!(Format::accepted("*/*"), Format::Text);
    }
}
