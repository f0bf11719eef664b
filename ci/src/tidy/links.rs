//! Links of the documents: each relative link leads to a file that exists, and to a heading of it
//! where it names one; each page is reachable from the README; pages that comments name exist.

use std::collections::{BTreeMap, BTreeSet};

use super::Tree;

/// The page that all others are reachable from.
const ENTRANCE: &str = "README.md";

/// Checks all links, and looks for pages that no link leads to.
pub(super) fn check(tree: &Tree, found: &mut Vec<String>) {
    let pages: BTreeMap<&str, &str> = tree
        .other
        .iter()
        .filter(|(name, _)| name.ends_with(".md"))
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let mut leads_to: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (&page, text) in &pages {
        for (line, target) in links(text) {
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if is_elsewhere {
                continue;
            }
            match resolve(tree, &pages, page, target) {
                Ok(to) => {
                    leads_to.entry(page).or_default().insert(to);
                }
                Err(problem) => found.push(format!("{page}:{line}: `{target}`: {problem}")),
            }
        }
    }
    orphans(&pages, &leads_to, found);
    mentions(tree, &pages, found);
}

/// The file or folder that `target` names in `page`, by its path from the top.
fn resolve(
    tree: &Tree,
    pages: &BTreeMap<&str, &str>,
    page: &str,
    target: &str,
) -> Result<String, &'static str> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let to = if path.is_empty() {
        page.to_owned()
    } else {
        join(page, path).ok_or("the link leaves the repository")?
    };
    let folder = format!("{}/", to.trim_end_matches('/'));
    let is_folder = tree.names().any(|name| name.starts_with(&folder));
    if !is_folder && !tree.names().any(|name| *name == to) {
        return Err("no such file or folder");
    }
    if anchor.is_empty() {
        return Ok(to);
    }
    match pages.get(to.as_str()) {
        Some(text) if headings(text).contains(anchor) => Ok(to),
        Some(_) => Err("the page has no such heading"),
        None => Ok(to),
    }
}

/// `path` as seen from the folder of `page`; `None` above the top.
fn join(page: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Pages that cannot be reached. A link to a folder reaches its README.
fn orphans(
    pages: &BTreeMap<&str, &str>,
    leads_to: &BTreeMap<&str, BTreeSet<String>>,
    found: &mut Vec<String>,
) {
    if !pages.contains_key(ENTRANCE) {
        return;
    }
    let mut reached = BTreeSet::from([ENTRANCE.to_owned()]);
    let mut open = vec![ENTRANCE.to_owned()];
    while let Some(page) = open.pop() {
        for to in leads_to.get(page.as_str()).into_iter().flatten() {
            for to in [to.clone(), format!("{to}/README.md")] {
                if pages.contains_key(to.as_str()) && reached.insert(to.clone()) {
                    open.push(to);
                }
            }
        }
    }
    for page in pages.keys().filter(|page| !reached.contains(**page)) {
        found.push(format!("{page}: no page that is reachable from {ENTRANCE} links here"));
    }
}

/// Pages that comments of code, or texts of another kind, name.
fn mentions(tree: &Tree, pages: &BTreeMap<&str, &str>, found: &mut Vec<String>) {
    let is_named = |text: &str| {
        pages.keys().any(|page| {
            page.strip_suffix(text).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        })
    };
    let comments = tree.rust.iter().map(|(name, source)| (name, source.comments.as_str()));
    let others = tree.other.iter().filter(|(name, _)| !name.ends_with(".md"));
    for (name, text) in comments.chain(others.map(|(name, text)| (name, text.as_str()))) {
        for (number, line) in (1..).zip(text.lines()) {
            let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
            for word in line.split(|c: char| !is_path(c)) {
                let page = word.trim_end_matches('.').trim_start_matches("../");
                let is_page = page.strip_suffix(".md").is_some_and(|stem| !stem.is_empty());
                if is_page && !is_named(page) {
                    found.push(format!("{name}:{number}: there is no page `{page}`"));
                }
            }
        }
    }
}

/// Targets of the links of a page, with the numbers of their lines; not those in code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut all = Vec::new();
    for (number, line) in prose(text) {
        let mut rest = line;
        while let Some(at) = rest.find("](") {
            let is_code = rest[..at].matches('`').count() % 2 == 1;
            rest = &rest[at + 2..];
            let Some(end) = rest.find(')') else { break };
            if !is_code {
                let target = rest[..end].split_whitespace().next().unwrap_or("");
                all.push((number, target));
            }
        }
    }
    all
}

/// Lines outside fenced code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// Anchors of a page's headings, as GitHub makes them.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then(|| title.strip_prefix(' ')).flatten()
    });
    let anchor = |title: &str| {
        let kept = title.trim().chars().filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
        });
        kept.collect::<String>()
    };
    titles.map(anchor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        let mut tree = Tree::default();
        for (name, text) in files {
            tree.add((*name).to_owned(), (*text).to_owned());
        }
        tree.binary.insert("perf/plot.png".to_owned());
        let mut found = Vec::new();
        check(&tree, &mut found);
        found
    }

    #[test]
    fn dead_relative_links_are_found() {
        let page = |link: &str| complaints(&[("README.md", &format!("# A b: c\n\n[x]({link})\n"))]);
        for good in ["https://x.org/y", "#a-b-c", "perf", "perf/plot.png", "./README.md"] {
            assert_eq!(page(good), [""; 0], "{good}");
        }
        for (bad, about) in [
            ("docs/none.md", "no such file"),
            ("../x.md", "leaves the repository"),
            ("#b", "no such heading"),
            ("README.md#b", "no such heading"),
        ] {
            let found = page(bad);
            assert!(found.len() == 1 && found[0].contains(about), "{bad}: {found:?}");
            assert!(found[0].starts_with("README.md:3"), "{found:?}");
        }
        let in_code = "# A\n`a[0](x)` and\n```\n[x](none.md)\n```\n";
        assert_eq!(complaints(&[("README.md", in_code)]), [""; 0]);
    }

    #[test]
    fn pages_without_a_link_are_found() {
        let readme = ("README.md", "# A\n[docs](docs)\n");
        let index = ("docs/README.md", "# B\n[one](guide/one.md)\n");
        let one = ("docs/guide/one.md", "# C\n[up](../README.md)\n");
        assert_eq!(complaints(&[readme, index, one]), [""; 0]);
        let found = complaints(&[readme, index, one, ("docs/two.md", "# D\n[one](guide/one.md)")]);
        assert!(found.len() == 1 && found[0].starts_with("docs/two.md:"), "{found:?}");
    }

    #[test]
    fn pages_that_comments_name_exist() {
        let page = ("engine/SPEC.md", "# A\n");
        let code = |text| complaints(&[page, ("engine/src/lib.rs", text)]);
        assert_eq!(code("// See SPEC.md, engine/SPEC.md.\nconst A: &str = \"x.md\";\n"), [""; 0]);
        assert!(
            code("\n// See docs/SPEC.md.\n")[0].starts_with("engine/src/lib.rs:2: there is no")
        );
        assert_eq!(complaints(&[page, ("deny.toml", "# see a.md")]).len(), 1);
    }
}
