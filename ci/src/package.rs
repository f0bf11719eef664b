//! What users get from a registry: the packages of the tree, as `cargo package` makes them.

use serde_json::Value;

use crate::run::{cargo, output, run as execute};

/// The files that each package has beside its sources.
const FILES: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// The fields by which a registry shows a package.
const FIELDS: [&str; 7] =
    ["description", "license", "repository", "readme", "keywords", "categories", "rust_version"];

/// The most that a registry takes of keywords, and of categories.
const WORDS_MAX: usize = 5;

/// Makes every package that is published, without a look at a registry, and checks what is in it.
/// It is not built again: that is for whoever publishes (`cargo package --workspace`).
pub(crate) fn check() -> Result<(), String> {
    let metadata = output(&mut cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let mut complaints = Vec::new();
    let mut names = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        if !is_published(package) {
            continue;
        }
        let name = package["name"].as_str().unwrap_or_default();
        complaints.extend(lacking(package).map(|lack| format!("{name}: {lack}")));
        let listed = output(&mut cargo(&["package", "--list", "--allow-dirty", "-p", name]))?;
        for file in FILES {
            if !listed.lines().any(|line| line == file) {
                complaints.push(format!("{name}: there is no {file} in its package"));
            }
        }
        names.push(name.to_owned());
    }
    for complaint in &complaints {
        println!("package: {complaint}");
    }
    if !complaints.is_empty() {
        return Err(format!("{} complaints about packages", complaints.len()));
    }
    let mut command = cargo(&["package", "--no-verify", "--allow-dirty", "--offline"]);
    for name in &names {
        command.args(["-p", name]);
    }
    execute(&mut command)
}

/// Whether a package may go to a registry: `publish = false` is an empty list of them.
fn is_published(package: &Value) -> bool {
    package["publish"].as_array().is_none_or(|registries| !registries.is_empty())
}

/// What a package lacks of what a registry shows, or has too much of; and dependencies that only
/// this tree has.
fn lacking(package: &Value) -> impl Iterator<Item = String> + '_ {
    let is_empty = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        value => value.as_str().is_none_or(str::is_empty),
    };
    let fields = FIELDS.iter().filter(move |field| is_empty(&package[**field]));
    let fields = fields.map(|field| format!("Cargo.toml has no {field}"));
    let lists = ["keywords", "categories"]
        .into_iter()
        .filter(|list| package[*list].as_array().is_some_and(|words| words.len() > WORDS_MAX));
    let lists = lists.map(|list| format!("more than {WORDS_MAX} {list}"));
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let local = dependencies.filter(|dependency| {
        // Those of tests are left out of the package where they are known by their path alone.
        dependency["kind"] != "dev" && dependency["path"].is_string() && dependency["req"] == "*"
    });
    let local = local.map(|dependency| {
        format!("its dependency {} has a path and no version", dependency["name"])
    });
    fields.chain(lists).chain(local)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_registry_refuses_is_found() {
        let mut package = json!({
            "name": "a", "description": "A.", "license": "MIT", "repository": "https://a.example",
            "readme": "README.md", "keywords": ["a"], "categories": ["science"],
            "rust_version": "1.92", "publish": null,
            "dependencies": [
                { "name": "b", "path": "/b", "req": "^0.1", "kind": null },
                { "name": "c", "path": "/c", "req": "*", "kind": "dev" },
            ],
        });
        assert!(is_published(&package));
        assert_eq!(lacking(&package).collect::<Vec<_>>(), [""; 0]);
        package["dependencies"][0]["req"] = json!("*");
        package["keywords"] = json!(["a", "b", "c", "d", "e", "f"]);
        package["repository"] = json!(null);
        let found: Vec<String> = lacking(&package).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        package["publish"] = json!([]);
        assert!(!is_published(&package));
    }
}
