//! Functions of a Rust source: where they are, and whether one is a single expression.

use std::ops::{Range, RangeInclusive};

use crate::tidy::source::{Source, is_name, words};

/// A function that a file defines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Function {
    /// Its name, behind that of its type or trait.
    pub(super) name: String,
    /// Its lines, from 1, to the end of its body.
    pub(super) lines: RangeInclusive<usize>,
    /// Whether its body is one expression without a block.
    pub(super) is_one_expression: bool,
}

/// All functions of a file that have a body.
pub(super) fn functions(text: String) -> Vec<Function> {
    let source = Source::new(text);
    let code = &source.code;
    let types = types(code);
    let mut functions = Vec::new();
    for at in words(code, "fn") {
        let rest = code[at + 2..].trim_start();
        let name = name_at(rest);
        let start = code.len() - rest.len();
        let Some(body) = body_of(code, start).filter(|_| !name.is_empty()) else { continue };
        let owner = types.iter().rfind(|(_, range)| range.contains(&at));
        let end = body.end;
        let text = code[body].trim();
        functions.push(Function {
            name: match owner {
                Some((owner, _)) => format!("{owner}::{name}"),
                None => name.to_owned(),
            },
            lines: source.line_of(at)..=source.line_of(end),
            is_one_expression: !text.is_empty() && !text.contains([';', '{']),
        });
    }
    functions
}

/// The innermost function that has this line.
pub(super) fn function_at(functions: &[Function], line: usize) -> Option<usize> {
    functions.iter().rposition(|function| function.lines.contains(&line))
}

/// Names of types and traits, and what lies between the braces of their functions.
fn types(code: &str) -> Vec<(&str, Range<usize>)> {
    let mut types = Vec::new();
    for word in ["impl", "trait"] {
        for at in words(code, word).filter(|&at| is_item(&code[..at])) {
            let start = at + word.len();
            let Some(body) = body_of(code, start) else { continue };
            let header = code[start..body.start - 1].split(" where ").next().unwrap_or_default();
            types.push((type_of(header), body));
        }
    }
    types.sort_by_key(|(_, body)| body.start);
    types
}

/// Whether an item begins behind this code: not `impl Trait` of an argument.
fn is_item(code: &str) -> bool {
    let before = code.trim_end().trim_end_matches("unsafe").trim_end();
    let line = before.rsplit('\n').next().unwrap_or_default().trim_start();
    // A trait may have a visibility before it.
    let is_visibility = line.starts_with("pub") && !line.contains(' ');
    is_visibility || before.is_empty() || before.ends_with(['}', ';', '{', ']'])
}

/// The name of the type in `<T> Trait<U> for path::Type<T>`, or in `Trait: Other`.
fn type_of(header: &str) -> &str {
    let header = match header.split_once(" for ") {
        Some((_, after)) => after,
        None => after_generics(header.trim_start()),
    };
    let header = header.trim_start().trim_start_matches(['&', '*']);
    let end = header
        .find(|letter: char| !matches!(letter, ':' | '_' | 'A'..='Z' | 'a'..='z' | '0'..='9'));
    let path = header[..end.unwrap_or(header.len())].trim_end_matches(':');
    path.rsplit("::").next().unwrap_or(path)
}

/// What stands behind a list of generic parameters, if there is one.
fn after_generics(header: &str) -> &str {
    if !header.starts_with('<') {
        return header;
    }
    let mut depth = 0_usize;
    for (at, byte) in header.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' if header[..at].ends_with(['-', '=']) => {}
            b'>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return &header[at + 1..];
        }
    }
    ""
}

/// What lies between the next braces outside other brackets; `None`: a `;` comes first.
fn body_of(code: &str, start: usize) -> Option<Range<usize>> {
    let (mut round, mut curly, mut begin) = (0_usize, 0_usize, None);
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => round += 1,
            b')' | b']' => round = round.saturating_sub(1),
            b';' if round == 0 && begin.is_none() => return None,
            b'{' if begin.is_some() || round == 0 => {
                begin = begin.or(Some(at + 1));
                curly += 1;
            }
            b'}' if begin.is_some() => {
                curly -= 1;
                if curly == 0 {
                    return begin.map(|begin| begin..at);
                }
            }
            _ => {}
        }
    }
    None
}

fn name_at(rest: &str) -> &str {
    let end = rest.bytes().position(|byte| !is_name(byte));
    &rest[..end.unwrap_or(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
use a::b;

fn free(f: fn(u8) -> u8, x: [u8; 4]) -> impl Fn() {
    // fn commented() {}
    move || drop(f(x[0]));
}

impl<F: Fn() -> u8> path::Trait<F> for super::Type<F> {
    #[inline]
    fn get(&self) -> u8 {
        self.inner.get()
    }

    pub fn new(x: impl Into<u8>) -> Self {
        Self { x: 1 }
    }
}

pub(crate) trait Trait {
    fn without();
    fn with(&self) -> u8 {
        fn inner() -> &'static str { \"}\" }
        let x = 1;
        x
    }
}
";

    #[test]
    fn functions_have_types_lines_and_bodies() {
        let functions = functions(TEXT.to_owned());
        let found: Vec<_> = functions
            .iter()
            .map(|it| (it.name.as_str(), it.lines.clone(), it.is_one_expression))
            .collect();
        let expected = [
            ("free", 3..=6, false),
            ("Type::get", 10..=12, true),
            ("Type::new", 14..=16, false),
            ("Trait::with", 21..=25, false),
            ("Trait::inner", 22..=22, true),
        ];
        assert_eq!(found, expected);
        assert_eq!(function_at(&functions, 22), Some(4));
        assert_eq!(function_at(&functions, 23), Some(3));
        assert_eq!(function_at(&functions, 8), None);
    }
}
