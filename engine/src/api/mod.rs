//! What a user touches: domain, endpoint, queues, address vector, errors, settings.
