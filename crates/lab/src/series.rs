//! A measured curve, and what a claim can ask about it.
//!
//! Values between two measured points are interpolated on the straight line; a
//! question outside the measured range has no answer, never an extrapolated one.

/// A curve is loss-free up to where more than this is lost: the one meaning of the word
/// in all experiments. Less cannot be told from packets that are still under way.
const LOSS_FREE_PERCENT: f64 = 1.0;

/// Points with increasing x; never empty, all finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    points: Vec<(f64, f64)>,
    /// Greater loads were wanted, and could not be measured.
    is_cut: bool,
}

impl Series {
    /// A curve through `points`; nothing if there is none or one is no number.
    #[must_use]
    pub fn new(mut points: Vec<(f64, f64)>) -> Option<Self> {
        let finite = points.iter().all(|(x, y)| x.is_finite() && y.is_finite());
        points.sort_by(|left, right| left.0.total_cmp(&right.0));
        let is_cut = false;
        (finite && !points.is_empty()).then_some(Self { points, is_cut })
    }

    /// The same of a sweep that goes up to `greatest`.
    #[must_use]
    pub fn of_sweep(points: Vec<(f64, f64)>, greatest: f64) -> Option<Self> {
        let measured = Self::new(points)?;
        let is_cut = measured.end() < greatest;
        Some(Self { is_cut, ..measured })
    }

    /// Whether it ends before its sweep: then nobody knows what comes after its end.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The greatest x.
    #[must_use]
    pub fn end(&self) -> f64 {
        self.points[self.points.len() - 1].0
    }

    /// The points, by x.
    #[must_use]
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// Greatest value.
    #[must_use]
    pub fn peak(&self) -> f64 {
        self.points[self.peak_index()].1
    }

    /// Where the greatest value is; the first such place.
    #[must_use]
    pub fn peak_at(&self) -> f64 {
        self.points[self.peak_index()].0
    }

    fn peak_index(&self) -> usize {
        let mut best = 0;
        for (index, point) in self.points.iter().enumerate() {
            if point.1 > self.points[best].1 {
                best = index;
            }
        }
        best
    }

    /// Least value.
    #[must_use]
    pub fn lowest(&self) -> f64 {
        self.points
            .iter()
            .fold(f64::INFINITY, |least, point| least.min(point.1))
    }

    /// Mean of the values.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.points.iter().map(|point| point.1).sum::<f64>() / self.points.len() as f64
    }

    /// Value at the least x.
    #[must_use]
    pub fn first(&self) -> f64 {
        self.points[0].1
    }

    /// Value at the greatest x.
    #[must_use]
    pub fn last(&self) -> f64 {
        self.points[self.points.len() - 1].1
    }

    /// Value at `x`; nothing outside the measured range.
    #[must_use]
    pub fn at(&self, x: f64) -> Option<f64> {
        if let Some(point) = self.points.iter().find(|point| point.0 == x) {
            return Some(point.1);
        }
        let pair = self
            .points
            .windows(2)
            .find(|pair| pair[0].0 < x && x < pair[1].0)?;
        let part = (x - pair[0].0) / (pair[1].0 - pair[0].0);
        Some(pair[0].1 + part * (pair[1].1 - pair[0].1))
    }

    /// Least value at or after the peak, in percent of the peak: 100 if the curve
    /// stays at its peak, 0 if it falls to nothing.
    #[must_use]
    pub fn held(&self) -> f64 {
        let peak = self.peak();
        let after = &self.points[self.peak_index()..];
        let least = after
            .iter()
            .fold(f64::INFINITY, |least, point| least.min(point.1));
        if peak == 0.0 {
            100.0
        } else {
            100.0 * least / peak
        }
    }

    /// The x beyond the peak at which the curve has fallen to `y`; nothing if it
    /// never does.
    #[must_use]
    pub fn falls_to(&self, y: f64) -> Option<f64> {
        let after = &self.points[self.peak_index()..];
        if after[0].1 <= y {
            return Some(after[0].0);
        }
        let pair = after.windows(2).find(|pair| pair[1].1 <= y)?;
        let part = (pair[0].1 - y) / (pair[0].1 - pair[1].1);
        Some(pair[0].0 + part * (pair[1].0 - pair[0].0))
    }

    /// The x at which the curve has risen to `y`; nothing if it never does.
    #[must_use]
    pub fn rises_to(&self, y: f64) -> Option<f64> {
        if self.points[0].1 >= y {
            return Some(self.points[0].0);
        }
        let pair = self.points.windows(2).find(|pair| pair[1].1 >= y)?;
        let part = (y - pair[0].1) / (pair[1].1 - pair[0].1);
        Some(pair[0].0 + part * (pair[1].0 - pair[0].0))
    }

    /// Of a curve of delivered over offered load: the greatest x up to which less than
    /// 1 percent of x is lost; 0 if not even at the first, and nothing if no more is
    /// lost anywhere. Between the last good and the first bad point the loss is interpolated.
    #[must_use]
    pub fn loss_free(&self) -> Option<f64> {
        let loss = |point: &(f64, f64)| {
            if point.0 == 0.0 {
                0.0
            } else {
                100.0 * (1.0 - point.1 / point.0)
            }
        };
        let bad = self
            .points
            .iter()
            .position(|point| loss(point) > LOSS_FREE_PERCENT)?;
        if bad == 0 {
            return Some(0.0);
        }
        let (good, bad) = (self.points[bad - 1], self.points[bad]);
        let part = (LOSS_FREE_PERCENT - loss(&good)) / (loss(&bad) - loss(&good));
        Some(good.0 + part.clamp(0.0, 1.0) * (bad.0 - good.0))
    }

    /// The same of a curve of what was lost: a load that comes at random differs from its
    /// nominal rate by more than the loss that is asked for.
    #[must_use]
    pub fn loss_free_by(&self) -> Option<f64> {
        let arrived = self.points.iter().map(|(x, lost)| (*x, x - lost));
        let points = arrived.collect();
        Self { points, ..*self }.loss_free()
    }

    /// Greatest drop from one point to the next, in percent of the peak.
    #[must_use]
    pub fn greatest_fall(&self) -> f64 {
        let fall = |pair: &[(f64, f64)]| (pair[0].1 - pair[1].1).max(0.0);
        self.greatest_step(fall)
    }

    /// Greatest rise from one point to the next, in percent of the peak.
    #[must_use]
    pub fn greatest_rise(&self) -> f64 {
        let rise = |pair: &[(f64, f64)]| (pair[1].1 - pair[0].1).max(0.0);
        self.greatest_step(rise)
    }

    fn greatest_step(&self, step: impl Fn(&[(f64, f64)]) -> f64) -> f64 {
        let greatest = self.points.windows(2).map(step).fold(0.0, f64::max);
        let peak = self.peak();
        if peak == 0.0 {
            0.0
        } else {
            100.0 * greatest / peak
        }
    }

    /// Least-squares line: slope and the part of the variance it explains, from 0
    /// to 1. Nothing with fewer than two points.
    #[must_use]
    pub fn line(&self) -> Option<(f64, f64)> {
        let count = self.points.len() as f64;
        let mean_x = self.points.iter().map(|point| point.0).sum::<f64>() / count;
        let mean_y = self.mean();
        let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
        for (x, y) in &self.points {
            xx += (x - mean_x).powi(2);
            xy += (x - mean_x) * (y - mean_y);
            yy += (y - mean_y).powi(2);
        }
        let explained = if yy == 0.0 { 1.0 } else { xy * xy / (xx * yy) };
        (xx > 0.0).then(|| (xy / xx, explained))
    }

    /// The part of the curve from `low` to `high`; nothing if no point lies there.
    #[must_use]
    pub fn between(&self, low: f64, high: f64) -> Option<Self> {
        let inside = self
            .points
            .iter()
            .filter(|point| (low..=high).contains(&point.0));
        let inside = Self::new(inside.copied().collect())?;
        let is_cut = self.is_cut && self.end() < high;
        Some(Self { is_cut, ..inside })
    }

    /// `operation` on both values wherever both curves have a point; nothing if
    /// they share none or a result is no number.
    #[must_use]
    pub fn with(&self, other: &Self, operation: impl Fn(f64, f64) -> f64) -> Option<Self> {
        let both = self.points.iter().filter_map(|(x, y)| {
            let partner = other.points.iter().find(|point| point.0 == *x)?;
            Some((*x, operation(*y, partner.1)))
        });
        let both = Self::new(both.collect())?;
        let is_cut = [self, other]
            .iter()
            .any(|one| one.is_cut && one.end() <= both.end());
        Some(Self { is_cut, ..both })
    }

    /// The same curve with every value mapped; nothing if a result is no number.
    #[must_use]
    pub fn map(&self, operation: impl Fn(f64) -> f64) -> Option<Self> {
        let mapped = Self::new(
            self.points
                .iter()
                .map(|(x, y)| (*x, operation(*y)))
                .collect(),
        )?;
        let is_cut = self.is_cut;
        Some(Self { is_cut, ..mapped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn livelock() -> Series {
        let points = [
            (0.0, 0.0),
            (10.0, 10.0),
            (20.0, 16.0),
            (40.0, 8.0),
            (60.0, 0.0),
        ];
        Series::new(points.to_vec()).unwrap()
    }

    #[test]
    fn a_curve_has_a_peak_and_values_between_its_points() {
        let curve = livelock();
        assert_eq!((curve.peak_at(), curve.peak()), (20.0, 16.0));
        assert_eq!(curve.at(30.0), Some(12.0));
        assert_eq!(curve.at(20.0), Some(16.0));
        assert_eq!(curve.at(61.0), None);
        assert_eq!(
            (curve.first(), curve.last(), curve.lowest()),
            (0.0, 0.0, 0.0)
        );
        assert!((curve.mean() - 6.8).abs() < 1e-12);
    }

    #[test]
    fn the_fall_after_the_peak_is_found() {
        let curve = livelock();
        assert_eq!(curve.held(), 0.0);
        assert_eq!(curve.falls_to(4.0), Some(50.0));
        assert_eq!(curve.falls_to(-1.0), None);
        assert_eq!(curve.rises_to(13.0), Some(15.0));
        let flat = curve.between(10.0, 20.0).unwrap();
        assert_eq!(flat.held(), 100.0);
        assert_eq!(flat.falls_to(1.0), None);
    }

    #[test]
    fn loss_free_is_where_the_loss_begins() {
        let curve = livelock();
        // No loss at 10, 20 % at 20: 1 % is a twentieth of the way.
        assert!((curve.loss_free().unwrap() - 10.5).abs() < 1e-9);
        let lost = Series::new(vec![(10.0, 0.0), (20.0, 4.0)]).unwrap();
        assert!((lost.loss_free_by().unwrap() - 10.5).abs() < 1e-9);
        let lossless = Series::new(vec![(1.0, 1.0), (2.0, 2.0)]).unwrap();
        assert_eq!(lossless.loss_free(), None);
        assert_eq!(lossless.map(|y| y / 2.0).unwrap().loss_free(), Some(0.0));
    }

    #[test]
    fn steps_are_percent_of_the_peak() {
        assert_eq!(livelock().greatest_fall(), 50.0);
        assert_eq!(livelock().greatest_rise(), 62.5);
    }

    #[test]
    fn a_straight_line_explains_everything() {
        let line = Series::new(vec![(1.0, 3.0), (2.0, 5.0), (4.0, 9.0)]).unwrap();
        let (slope, explained) = line.line().unwrap();
        assert!((slope - 2.0).abs() < 1e-12 && (explained - 1.0).abs() < 1e-12);
    }

    #[test]
    fn curves_meet_where_both_were_measured() {
        let other = Series::new(vec![(10.0, 5.0), (20.0, 4.0), (30.0, 1.0)]).unwrap();
        let ratio = livelock().with(&other, |a, b| a / b).unwrap();
        assert_eq!(ratio.points(), [(10.0, 2.0), (20.0, 4.0)]);
        let zero = other.map(|_| 0.0).unwrap();
        assert!(livelock().with(&zero, |a, b| a / b).is_none());
    }

    #[test]
    fn a_curve_is_cut_where_its_sweep_goes_on() {
        let points = || vec![(1.0, 1.0), (2.0, 2.0)];
        let (whole, cut) = (Series::new(points()), Series::of_sweep(points(), 3.0));
        let (whole, cut) = (whole.unwrap(), cut.unwrap());
        assert_eq!(Series::of_sweep(points(), 2.0).as_ref(), Some(&whole));
        let is_cut = |curve: Option<Series>| curve.unwrap().is_cut();
        assert!(is_cut(cut.map(|y| y * 2.0)));
        assert!(is_cut(cut.with(&whole, f64::max)) && is_cut(whole.with(&cut, f64::max)));
        assert!(is_cut(cut.between(1.0, 3.0)) && !is_cut(cut.between(1.0, 2.0)));
        // What is asked of 1 alone does not depend on what comes after 2.
        let first = whole.between(1.0, 1.0).unwrap();
        assert!(!is_cut(cut.with(&first, f64::max)));
    }
}
