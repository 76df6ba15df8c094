//! The tables for a person.

use std::fmt::Write as _;

use super::Sources;
use crate::figures::grouped;
use crate::own_port::servers::SourcesServer;

impl Sources {
    pub(in crate::guard) fn table(&self) -> String {
        let mut text = "Floods of a server's own port; an honest client asks it\n".to_owned();
        if !self.fairness {
            text += "This guard knows no fairness among sources.\n";
        }
        for server in SourcesServer::ALL {
            self.add_flooded(&mut text, server);
        }
        self.add_clients(&mut text);
        self.add_crowd(&mut text);
        self.add_alone(&mut text);
        text
    }

    fn add_flooded(&self, text: &mut String, server: SourcesServer) {
        let capacity = self.capacities.iter().find(|one| one.server == server);
        let Some(capacity) = capacity else {
            return;
        };
        let _ = writeln!(
            text,
            "{} can take {}/s\n{:>9}{:>4} {:>11} {:>8}{:>11}{:>9}{:>9}{:>9}{:>16}{:>12}",
            server.name(),
            grouped(capacity.answers_max_per_s),
            "flood",
            "×",
            "offered/s",
            "",
            "limit/s",
            "answered",
            "of",
            "percent",
            "lowest, highest",
            "answers/s",
        );
        for case in self.cases.iter().filter(|case| case.server == server) {
            let percent = 100.0 * case.answered as f64 / case.asked.max(1) as f64;
            let lowest = case
                .answered_percents
                .iter()
                .copied()
                .fold(f64::NAN, f64::min);
            let highest = case
                .answered_percents
                .iter()
                .copied()
                .fold(f64::NAN, f64::max);
            let limit = case.filter_pps.map_or(String::new(), |pps| pps.to_string());
            let answers = case.answers_per_s.map_or("-".to_owned(), grouped);
            let _ = writeln!(
                text,
                "{:>9}{:>4} {:>11} {:>8}{limit:>11}{:>9}{:>9}{percent:>8.2}%{:>16}{answers:>12}",
                case.flood.name(),
                case.multiple,
                grouped(case.offered_pps),
                case.protection.name(),
                case.answered,
                case.asked,
                format!("{lowest:.1}, {highest:.1}"),
            );
        }
    }

    fn add_clients(&self, text: &mut String) {
        if self.clients.is_empty() {
            return;
        }
        *text += "Fifty honest clients, 50 to 3,000 queries/s, ask more than the echo can answer\n";
        for case in &self.clients {
            let limit = case
                .filter_pps
                .map_or(String::new(), |pps| format!(", limit {pps}/s"));
            let _ = writeln!(
                text,
                "{:>9} answered {} of {}, {}/s; Jain's index {:.3}{limit}",
                case.protection.name(),
                case.answered,
                case.asked,
                grouped(case.answers_per_s),
                case.jain,
            );
        }
    }

    fn add_crowd(&self, text: &mut String) {
        if self.crowd.is_empty() {
            return;
        }
        *text += "Ten thousand clients ask once a second each, more than the echo can answer\n";
        for case in &self.crowd {
            let _ = writeln!(
                text,
                "{:>9} {}/s of {}/s answered; the longest without an answer {:.1} s; {} clients \
                 without any",
                case.protection.name(),
                grouped(case.answers_per_s),
                grouped(case.asked_per_s),
                case.longest_without_s,
                case.unanswered_clients,
            );
        }
    }

    fn add_alone(&self, text: &mut String) {
        if self.alone.is_empty() {
            return;
        }
        *text += "Nobody but the flooded server's traffic; then a bystander begins\n";
        for case in &self.alone {
            let _ = writeln!(
                text,
                "{:>4} × {:>11}/s {:>8} goodput {}/s ({:.0} % of MLFRR); it loses {} of {} in its \
                 first second, then {} of {}",
                case.multiple,
                grouped(case.offered_pps),
                case.protection.name(),
                grouped(case.goodput_pps),
                case.goodput_percent,
                case.first_lost,
                case.first_asked,
                case.later_lost,
                case.later_asked,
            );
        }
    }
}
