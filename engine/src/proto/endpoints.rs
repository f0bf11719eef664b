//! Endpoints of an engine: opened, and closed with what waits at them.

use super::core::{Core, ENDPOINTS_MAX};
use super::effects::{Effects, Ended};
use super::matching::Matcher;
use super::session::Control;
use super::unexpected::Kind;

impl Core {
    /// Opens an endpoint and returns its id; `None` at the limit.
    pub(crate) fn open_endpoint(&mut self) -> Option<u16> {
        let seed = self.config.hash_seed;
        let index = self.endpoints.iter().position(Option::is_none).unwrap_or_else(|| {
            self.endpoints.push(None);
            self.endpoints.len() - 1
        });
        if index >= ENDPOINTS_MAX {
            self.endpoints.truncate(ENDPOINTS_MAX);
            return None;
        }
        self.endpoints[index] = Some(Matcher::new(seed));
        Some(index as u16)
    }

    /// Closes an endpoint: its receives end as cancelled, its unexpected messages are dropped.
    pub(crate) fn close_endpoint(&mut self, endpoint: u16, effects: &mut impl Effects) {
        let Some(Some(mut matcher)) =
            self.endpoints.get_mut(usize::from(endpoint)).map(Option::take)
        else {
            return;
        };
        let mut receives = Vec::new();
        matcher.drain_all_posted(|receive| receives.push(receive));
        for receive in receives {
            if let Some(id) = self.operations.id_at(receive as usize) {
                self.operations.remove(id);
                effects.complete(id, Ended::Cancelled);
            }
        }
        let mut messages = Vec::new();
        matcher.drain_all_unexpected(|message| messages.push(message));
        for message in messages {
            self.abandon(message);
        }
    }

    /// Drops an unexpected message and tells its sender if that one still waits.
    pub(super) fn abandon(&mut self, message: u32) {
        let Some(message) = self.unexpected.take(message) else { return };
        self.return_credit_of(&message);
        let operation = match message.kind {
            Kind::Eager { report } => report,
            Kind::Rendezvous { send_operation, .. } => send_operation,
            Kind::Parts { report, assembly } => {
                self.drop_assembly(assembly);
                report
            }
        };
        if operation != 0 {
            let status = crate::wire::done::STATUS_ABANDONED;
            self.push_control(message.session, Control::done(operation, status, 0));
        }
        self.unexpected.recycle(message);
    }
}
