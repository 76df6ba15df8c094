//! The functions of claims: what an expression may ask about curves.

use std::collections::BTreeMap;
use std::rc::Rc;

use rhai::{Dynamic, Engine, EvalAltResult, ImmutableString};

use crate::series::Series;

/// One curve's measures, as an expression sees them.
#[derive(Clone)]
pub(super) struct Measured {
    pub(super) curve: String,
    pub(super) measures: Rc<BTreeMap<String, Series>>,
}

/// The message without the places inside an expression of one line.
pub(super) fn innermost(error: &EvalAltResult) -> String {
    match error {
        EvalAltResult::ErrorInFunctionCall(_, _, inner, _) => innermost(inner),
        EvalAltResult::ErrorRuntime(message, _) => message.to_string(),
        other => other.to_string(),
    }
}

pub(super) fn float(value: &Dynamic) -> Option<f64> {
    match value.as_float() {
        Ok(float) => Some(float),
        Err(_) => value.as_int().ok().map(|whole| whole as f64),
    }
}

type Fallible<T> = Result<T, Box<EvalAltResult>>;

fn failure(text: impl Into<String>) -> Box<EvalAltResult> {
    text.into().into()
}

fn argument(value: &Dynamic) -> Fallible<f64> {
    float(value).ok_or_else(|| failure("a number was expected"))
}

/// The functions of claims.
pub(super) fn engine() -> Engine {
    let mut engine = Engine::new();
    engine.set_max_operations(100_000);
    engine.register_type_with_name::<Measured>("curve");
    engine.register_type_with_name::<Series>("measured curve");
    engine.register_indexer_get(|measured: &mut Measured, name: ImmutableString| {
        series(measured, &name)
    });
    register_values(&mut engine);
    register_places(&mut engine);
    register_curves(&mut engine);
    engine
}

fn series(measured: &Measured, name: &str) -> Fallible<Series> {
    measured.measures.get(name).cloned().ok_or_else(|| {
        let problem = format!("{}.{name} was not measured", measured.curve);
        failure(problem)
    })
}

/// Curve → number.
fn register_values(engine: &mut Engine) {
    engine
        .register_fn("peak", |curve: Series| curve.peak())
        .register_fn("peak_at", |curve: Series| curve.peak_at())
        .register_fn("lowest", |curve: Series| curve.lowest())
        .register_fn("mean", |curve: Series| curve.mean())
        .register_fn("first", |curve: Series| curve.first())
        .register_fn("last", |curve: Series| curve.last())
        .register_fn("held", |curve: Series| curve.held())
        .register_fn("greatest_fall", |curve: Series| curve.greatest_fall())
        .register_fn("greatest_rise", |curve: Series| curve.greatest_rise())
        .register_fn("slope", |curve: Series| -> Fallible<f64> {
            Ok(line(&curve)?.0)
        })
        .register_fn("linearity", |curve: Series| -> Fallible<f64> {
            Ok(line(&curve)?.1)
        });
}

fn line(curve: &Series) -> Fallible<(f64, f64)> {
    curve
        .line()
        .ok_or_else(|| failure("a line needs two points"))
}

/// Curve and number → number.
fn register_places(engine: &mut Engine) {
    engine
        .register_fn("at", |curve: Series, x: Dynamic| -> Fallible<f64> {
            let x = argument(&x)?;
            curve
                .at(x)
                .ok_or_else(|| failure(format!("{x} is outside the measured range")))
        })
        .register_fn("falls_to", |curve: Series, y: Dynamic| -> Fallible<f64> {
            // A curve that never falls that far does so later than any load.
            let place = curve.falls_to(argument(&y)?);
            or_beyond(&curve, place, f64::INFINITY)
        })
        .register_fn("rises_to", |curve: Series, y: Dynamic| -> Fallible<f64> {
            let place = curve.rises_to(argument(&y)?);
            or_beyond(&curve, place, f64::INFINITY)
        })
        .register_fn("loss_free", |curve: Series| -> Fallible<f64> {
            or_beyond(&curve, curve.loss_free(), curve.end())
        })
        .register_fn("loss_free_by", |lost: Series| -> Fallible<f64> {
            or_beyond(&lost, lost.loss_free_by(), lost.end())
        });
}

/// A place on a curve, or what stands for a place that it does not reach. What is not reached
/// by a curve that ends before its sweep may lie beyond its end.
fn or_beyond(curve: &Series, place: Option<f64>, beyond: f64) -> Fallible<f64> {
    match place {
        Some(place) => Ok(place),
        None if curve.is_cut() => {
            let end = curve.end();
            let problem = format!("not reached up to {end}, and no further load was measured");
            Err(failure(problem))
        }
        None => Ok(beyond),
    }
}

/// Curves → curve.
fn register_curves(engine: &mut Engine) {
    engine
        .register_fn(
            "between",
            |curve: Series, low: Dynamic, high: Dynamic| -> Fallible<Series> {
                let (low, high) = (argument(&low)?, argument(&high)?);
                curve
                    .between(low, high)
                    .ok_or_else(|| failure(format!("no point lies from {low} to {high}")))
            },
        )
        .register_fn("max", |left: Series, right: Series| {
            together(&left, &right, f64::max)
        })
        .register_fn("/", |left: Series, right: Series| {
            together(&left, &right, |a, b| a / b)
        })
        .register_fn("-", |left: Series, right: Series| {
            together(&left, &right, |a, b| a - b)
        })
        .register_fn("+", |left: Series, right: Series| {
            together(&left, &right, |a, b| a + b)
        })
        .register_fn("abs", |curve: Series| mapped(&curve, f64::abs))
        .register_fn("*", |curve: Series, factor: f64| {
            mapped(&curve, |y| y * factor)
        })
        .register_fn("*", |curve: Series, factor: i64| {
            mapped(&curve, |y| y * factor as f64)
        })
        .register_fn("-", |curve: Series, term: f64| mapped(&curve, |y| y - term))
        .register_fn("-", |curve: Series, term: i64| {
            mapped(&curve, |y| y - term as f64)
        });
}

fn together(
    left: &Series,
    right: &Series,
    operation: impl Fn(f64, f64) -> f64,
) -> Fallible<Series> {
    left.with(right, operation)
        .ok_or_else(|| failure("the curves share no point, or one is zero there"))
}

fn mapped(curve: &Series, operation: impl Fn(f64) -> f64) -> Fallible<Series> {
    curve
        .map(operation)
        .ok_or_else(|| failure("a value is not a number"))
}
